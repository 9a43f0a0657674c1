"""Adapters that `stemcache up` loads once everything runs: it asks the router, as an operator does. Keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cache_store.adapter_files import read_adapter
from cache_store.adapters import checked_name
from cache_store.errors import InvalidRequestError, PreconditionError
from services.client import AdminClient


@dataclass(frozen=True, slots=True)
class AdapterOption:
    """One adapter."""

    name: str
    folder: Path
    tenants: tuple[str, ...]
    """Who may call it; empty: everybody."""


def parse_adapter(text: str) -> AdapterOption:
    """`NAME[@TENANT,...]=FOLDER`. Raises InvalidRequestError."""
    left, equals, folder = text.partition("=")
    name, at, tenants = left.partition("@")
    names = tuple(tenants.split(",")) if at else ()
    if not (equals and folder) or not all(names):
        raise InvalidRequestError("adapter", f"{text!r} is no NAME=FOLDER or NAME@TENANT,...=FOLDER")
    return AdapterOption(checked_name(name), Path(folder).expanduser().absolute(), names)


def check_adapters(options: Iterable[AdapterOption]) -> None:
    """Raises InvalidRequestError for a folder that no worker would take, before anything is started."""
    for option in options:
        read_adapter(option.folder)


def load_adapters(
    client: AdminClient, model: str, options: Iterable[AdapterOption], report: Callable[[str], None]
) -> None:
    """Loads them all. Raises what the router says, PreconditionError where a worker does not serve one."""
    for option in options:
        adapter = client.load_adapter(option.name, str(option.folder), model, option.tenants)
        for worker in adapter.workers:
            if worker.state != "served":
                why = worker.error or "it said nothing in time"
                raise PreconditionError(f"{worker.worker_id} does not serve the adapter {option.name}: {why}")
        report(f"adapter {option.name} is loaded")
