"""What a worker does about the adapters that it is told: loads, shares, replaces, reports what fails, tries again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cache_store.adapter_files import AdapterContent, read_adapter
from cache_store.adapters import Adapter
from cache_store.clock import SystemClock
from cache_store.domain import AdapterDigest, FormatDigest
from cache_store.errors import InvalidRequestError, UnavailableError
from cache_store.scrubs import Dropped
from tests.support.adapter_folders import plain_tensors, write_folder
from tests.support.scripted_engine import ScriptedEngine
from worker.adapter_loads import AdapterLoads
from worker.digest_runner import digest_model
from worker.engine_thread import EngineThread
from worker.runner import PreparedAdapter

MODEL = digest_model()


class Engine(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[str, AdapterDigest]] = []
        self.names: dict[AdapterDigest, FormatDigest] = {}

    def attach_adapter(self, adapter: PreparedAdapter) -> None:
        self.said.append(("attach", adapter.digest))

    def retire_adapter(self, adapter: AdapterDigest, kv_format: FormatDigest) -> Dropped:
        assert kv_format == MODEL.format_with(adapter)
        self.said.append(("retire", adapter))
        return Dropped()


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = Engine()
        self.thread: EngineThread[Engine] = EngineThread(self.engine, lambda _: None, SystemClock())
        self.refused: set[AdapterDigest] = set()
        self.num_changes = 0
        self.loop_thread = threading.get_ident()
        self.loads = AdapterLoads(self.thread, self.prepare, MODEL, "m", self.note, retry_s=0.05)

    def prepare(self, content: AdapterContent) -> PreparedAdapter:
        assert threading.get_ident() != self.loop_thread, "the event loop waits meanwhile"
        if content.digest in self.refused:
            raise InvalidRequestError("folder", "it was trained for\nanother model")
        return PreparedAdapter(content.digest, None)

    def note(self) -> None:
        self.num_changes += 1

    def adapter(self, name: str, alpha: float, base: str = "m") -> Adapter:
        folder = write_folder(self.folder / f"{alpha}", plain_tensors(), lora_alpha=alpha)
        return Adapter(name, base, str(folder), read_adapter(folder).digest)

    async def settled(self, *adapters: Adapter) -> list[tuple[str, str]]:
        """Name and error of all reports once each of `adapters` has one and no other has."""
        self.loads.want(adapters)
        wanted = sorted((each.name, each.digest) for each in adapters)
        async with asyncio.timeout(20):
            while sorted((each.name, each.digest) for each in self.loads.reports()) != wanted:
                await asyncio.sleep(0.005)
        return [(each.name, each.error) for each in self.loads.reports()]

    async def said(self, *expected: tuple[str, Adapter]) -> None:
        """Waits until the engine was told just that."""
        told = [(what, adapter.digest) for what, adapter in expected]
        async with asyncio.timeout(20):
            while self.engine.said != told:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Bench]:
    bench = Bench(folder)
    bench.thread.start()
    task = asyncio.create_task(bench.loads.run())
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await bench.thread.stop(5)


async def test_what_is_wanted_of_its_model_is_attached_and_reported(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        mine, other = bench.adapter("mine", 1), bench.adapter("other", 2, base="another-model")
        bench.loads.want([mine, other])
        assert await bench.settled(mine) == [("mine", "")]
        await bench.said(("attach", mine))
        kv_format = MODEL.format_with(mine.digest)
        assert bench.loads.reports()[0].kv_format == kv_format
        assert bench.loads.adapter_of(kv_format) == mine.digest
        assert bench.loads.adapter_of(MODEL.format_with(other.digest)) is None
        assert bench.num_changes == 1


async def test_the_new_one_is_there_before_the_old_one_goes(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        old, new = bench.adapter("mine", 1), bench.adapter("mine", 2)
        await bench.settled(old)
        await bench.settled(new)
        await bench.said(("attach", old), ("attach", new), ("retire", old))
        with pytest.raises(UnavailableError, match="unloaded or replaced"):
            bench.loads.adapter_of(MODEL.format_with(old.digest))
        await bench.settled(old)
        assert bench.loads.adapter_of(MODEL.format_with(old.digest)) == old.digest


async def test_two_names_of_one_content_are_one_adapter(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        one, two = bench.adapter("one", 1), bench.adapter("two", 1)
        await bench.settled(one, two)
        await bench.settled(two)
        await bench.said(("attach", one))
        await bench.settled()
        await bench.said(("attach", one), ("retire", one))


async def test_what_does_not_fit_is_reported_and_what_was_there_stays(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        old, bad = bench.adapter("mine", 1), bench.adapter("mine", 2)
        bench.refused.add(bad.digest)
        await bench.settled(old)
        assert await bench.settled(bad) == [("mine", "it was trained for another model")]
        assert bench.loads.adapter_of(MODEL.format_with(old.digest)) == old.digest
        assert await bench.settled(old) == [("mine", "")]
        await bench.said(("attach", old))


async def test_what_failed_is_tried_again(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        late = bench.adapter("late", 1)
        bench.refused.add(late.digest)
        assert await bench.settled(late) == [("late", "it was trained for another model")]
        bench.refused.clear()
        async with asyncio.timeout(20):
            while bench.loads.reports()[0].error:
                await asyncio.sleep(0.01)
        await bench.said(("attach", late))


async def test_other_content_than_was_named_is_not_loaded(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        adapter = bench.adapter("mine", 1)
        write_folder(Path(adapter.folder), plain_tensors(), lora_alpha=3)
        ((_, error),) = await bench.settled(adapter)
        assert "holds other content than was loaded under this name" in error
        assert bench.engine.said == []
