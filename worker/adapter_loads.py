"""The adapters that a worker is to serve: read, checked and attached one after the other, beside its steps.

What is wanted comes with the published quotas. An adapter that cannot be loaded is reported with its reason and tried
again now and then; under its name nothing else is served meanwhile than what was there before, and that only to
requests of routers which still ask for it. Names are the routers': weights and blocks go by digest, so that two names
of one content share both. Runs on the worker's event loop, which owns the state; reading and checking take a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog

from cache_store.adapter_files import AdapterContent, read_adapter
from cache_store.adapters import MAX_ADAPTERS, MAX_ERROR_CHARS, Adapter, AdapterReport
from cache_store.domain import AdapterDigest, FormatDigest
from cache_store.errors import PreconditionError, StemcacheError, UnavailableError
from cache_store.scrubs import Dropped
from worker.engine_thread import EngineThread
from worker.runner import ModelInfo, PreparedAdapter
from worker.threaded_engine import ThreadedEngine

APPLY_TIMEOUT_S = 30.0
"""For the engine to come to it, between two steps."""

RETRY_S = 10.0
"""After that long what could not be loaded is tried again: its folder may come."""

_LET_GO_RETRY_S = 1.0

_log = structlog.get_logger(__name__)


class AdaptedEngine(ThreadedEngine, Protocol):
    """An engine that takes requests with adapters."""

    def attach_adapter(self, adapter: PreparedAdapter) -> None:
        """Takes requests with it from now on."""
        ...

    def retire_adapter(self, adapter: AdapterDigest, kv_format: FormatDigest) -> Dropped:
        """Takes no more requests with it and drops what is cached of it."""
        ...


class AdapterLoads:
    """Adapters of one worker."""

    def __init__(
        self,
        thread: EngineThread[AdaptedEngine],
        prepare: Callable[[AdapterContent], PreparedAdapter],
        model: ModelInfo,
        model_name: str,
        note_change: Callable[[], None],
        retry_s: float = RETRY_S,
    ) -> None:
        """`prepare` is the runner's, `model_name` what the worker's model is called; `note_change`: reports differ."""
        self._thread = thread
        self._prepare = prepare
        self._model = model
        self._model_name = model_name
        self._note_change = note_change
        self._retry_s = retry_s
        self._wanted: dict[str, Adapter] = {}
        self._served: dict[str, AdapterDigest] = {}
        self._errors: dict[str, AdapterReport] = {}
        self._formats: dict[FormatDigest, AdapterDigest] = {}
        """Of all that the engine has, or was told to have."""
        self._let_go: deque[FormatDigest] = deque(maxlen=MAX_ADAPTERS)
        """Formats that were served lately."""
        self._wake = asyncio.Event()

    def want(self, adapters: Iterable[Adapter]) -> None:
        """Names what is to be served from now on, of all models; it is loaded soon."""
        wanted = {each.name: each for each in adapters if each.base == self._model_name}
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def adapter_of(self, kv_format: FormatDigest) -> AdapterDigest | None:
        """The adapter with that KV format; None: it is of none. Raises UnavailableError for one that was let go of."""
        adapter = self._formats.get(kv_format)
        if adapter is None and kv_format in self._let_go:
            raise UnavailableError("the adapter of this request was unloaded or replaced; try again", _LET_GO_RETRY_S)
        return adapter

    def reports(self) -> tuple[AdapterReport, ...]:
        """What became of what is wanted, by name; what is not there yet is absent."""
        served = (self._report(name, digest) for name, digest in self._served.items() if name not in self._errors)
        return tuple(sorted((*served, *self._errors.values()), key=lambda report: report.name))

    async def run(self) -> None:
        """Follows what is wanted until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._retry_s if self._errors else None):
                    await self._wake.wait()
            self._wake.clear()
            await self._follow()

    async def _follow(self) -> None:
        for adapter in list(self._wanted.values()):
            if self._served.get(adapter.name) != adapter.digest or adapter.name in self._errors:
                await self._load(adapter)
        for name in [name for name in (*self._served, *self._errors) if name not in self._wanted]:
            self._served.pop(name, None)
            self._errors.pop(name, None)
            self._note_change()
        for kv_format, digest in list(self._formats.items()):
            if digest not in self._served.values():
                await self._retire(digest, kv_format)

    async def _load(self, adapter: Adapter) -> None:
        try:
            await self._attach(adapter)
        except (StemcacheError, TimeoutError, MemoryError, OSError, RuntimeError) as error:
            self._fail(adapter, str(error) or type(error).__name__)
            return
        self._served[adapter.name] = adapter.digest
        self._errors.pop(adapter.name, None)
        self._note_change()
        _log.info("adapter_loaded", adapter=adapter.name)

    async def _attach(self, adapter: Adapter) -> None:
        if adapter.digest not in self._formats.values():
            content = await asyncio.to_thread(read_adapter, Path(adapter.folder))
            if content.digest != adapter.digest:
                raise PreconditionError(
                    f"{adapter.folder} holds other content than was loaded under this name; load it again to serve it"
                )
            prepared = await asyncio.to_thread(self._prepare, content)
            self._formats[self._model.format_with(adapter.digest)] = adapter.digest
            await self._thread.call(lambda engine: engine.attach_adapter(prepared), APPLY_TIMEOUT_S)

    async def _retire(self, digest: AdapterDigest, kv_format: FormatDigest) -> None:
        """From the edge first, so that no request comes to the engine behind it."""
        del self._formats[kv_format]
        self._let_go.append(kv_format)
        with suppress(TimeoutError):  # it will come to it all the same
            dropped = await self._thread.call(lambda engine: engine.retire_adapter(digest, kv_format), APPLY_TIMEOUT_S)
            _log.info("adapter_retired", device_blocks=dropped.device_blocks, held_blocks=dropped.held_blocks)

    def _fail(self, adapter: Adapter, reason: str) -> None:
        text = "".join(each if each.isprintable() else " " for each in reason)[:MAX_ERROR_CHARS]
        report = AdapterReport(adapter.name, adapter.digest, FormatDigest(b""), text)
        if self._errors.get(adapter.name) != report:
            self._errors[adapter.name] = report
            self._note_change()
            _log.error("adapter_not_loaded", adapter=adapter.name, reason=text)

    def _report(self, name: str, digest: AdapterDigest) -> AdapterReport:
        return AdapterReport(name, digest, self._model.format_with(digest), "")
