"""Routers of others that install from the registry, each from an environment of its own, in front of one worker.

Their cache-aware policy is on. One that is not installed or takes no request is not run, and the reason is told.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.router.http_side import HttpCalls, HttpError
from tests.bench.router.processes import Listening

_READY_S, _AGAIN_S, _STOP_S = 60.0, 0.5, 10.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A router of others."""

    package: str
    launch: tuple[str, ...]
    """What is run in its environment's `bin`."""


SGLANG_ROUTER = Peer("sglang-router", ("python", "-m", "sglang_router.launch_router"))
SMG = Peer("smg", ("smg", "launch"))


class NotRunError(Exception):
    """Why a peer is not run."""


async def version_of(peer: Peer, environment: Path) -> str:
    """What is installed. Raises NotRunError."""
    python = environment / "bin" / "python"
    if not python.exists():
        raise NotRunError(f"{environment} is missing; `make bench-peers` makes it")
    asked = f"from importlib.metadata import version; print(version({peer.package!r}))"
    process = await asyncio.create_subprocess_exec(
        python, "-c", asked, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    told, errors = await process.communicate()
    if process.returncode:
        raise NotRunError(f"{peer.package} is not in {environment}: {errors.decode().strip().splitlines()[-1]}")
    return told.decode().strip()


@asynccontextmanager
async def peer_router(peer: Peer, environment: Path, worker: str, log: Path) -> AsyncIterator[Listening]:
    """It runs in front of `worker` until the block ends. Raises NotRunError where it takes no request."""
    port, metrics_port = _free_ports(2)
    program, *arguments = peer.launch
    told = ("--worker-urls", f"http://{worker}", "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware")
    beside = ("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port), "--log-level", "warn")
    with log.open("w") as out:
        process = await asyncio.create_subprocess_exec(
            environment / "bin" / program, *arguments, *told, *beside, stdin=DEVNULL, stdout=out, stderr=out
        )
    try:
        await _ready(f"127.0.0.1:{port}", process, log)
        yield Listening(f"127.0.0.1:{port}", process.pid)
    finally:
        await _end(process)


async def _ready(address: str, process: asyncio.subprocess.Process, log: Path) -> None:
    calls, why = HttpCalls(address, 1, 1), ""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + _READY_S
    while process.returncode is None and loop.time() < ends_s:
        try:
            await calls.call()
        except (HttpError, OSError, EOFError) as error:
            why = str(error)
            await asyncio.sleep(_AGAIN_S)
        else:
            calls.close()
            return
    last = log.read_text(errors="replace").strip().splitlines()[-1:]
    raise NotRunError(f"it takes no request: {why}; its log ends with {last}")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _free_ports(number: int) -> Sequence[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
