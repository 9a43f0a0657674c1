"""Runs a console beside a router."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from cache_store.clock import Clock
from cache_store.errors import PreconditionError
from cache_store.tls_files import Component, TlsFiles, tls_name
from services.console.server import Console
from services.tls import Trust

_log = structlog.get_logger(__name__)
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - replaced, not bound


@asynccontextmanager
async def running_console(
    listen: str | None, admin_address: str, tls: TlsFiles | None, clock: Clock
) -> AsyncIterator[str]:
    """The URL of a console that asks the operator's API at `admin_address`; empty where there is none.

    `tls`: of a component of the cluster, where the admin port asks for them.

    Raises PreconditionError for a port that is taken.
    """
    if not listen:
        yield ""
        return
    host, _, port = listen.rpartition(":")
    trust = None if tls is None else Trust(tls.authority, tls, tls_name(Component.ROUTER))
    console = Console(_reachable(admin_address), trust, host.strip("[]"), clock)
    try:
        bound = await console.start(int(port))
    except OSError as error:
        raise PreconditionError(
            f"the console cannot listen on {listen}: {error.strerror}; name another port"
        ) from error
    try:
        url = f"http://{_reachable(f'{host}:{bound}')}/"
        _log.info("console.listening", url=url)
        yield url
    finally:
        await console.stop()


def _reachable(address: str) -> str:
    """An address to call where one listens on all of them."""
    host, _, port = address.rpartition(":")
    return f"{_EVERYWHERE.get(host, host)}:{port}"
