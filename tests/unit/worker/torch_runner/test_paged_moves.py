"""Blocks of real tensors that were away, on the host or on disk, give the same logits bit by bit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cache_store.block_files import BlockFiles
from cache_store.clock import SystemClock
from cache_store.domain import TenantId
from cache_store.kv_layout import KvDtype
from cache_store.transfers import HostStore, Load, Moves, TransferId
from tests.support.runner_drivers import paged_driver, tokens
from tests.support.step_driver import Driver, Track
from tests.support.tiny_models import NAMES
from tests.support.transfer_plans import block_name, moving, spill
from worker.block_copier import BlockCopier
from worker.mover import Mover
from worker.step_plan import RowFailure, SlotRef
from worker.torch_runner.loader import LoadedModel, with_kv_dtype
from worker.transfers import BackgroundTransfers, DiskTier

FLOAT32 = KvDtype.FLOAT32
NUM_PROMPT = 48
"""Three blocks."""


class Bench:
    """A paged runner with a host pool and real files, and a sequence whose prompt is computed."""

    def __init__(self, model: LoadedModel, folder: Path) -> None:
        def make(copier: BlockCopier) -> Mover:
            files = BlockFiles(folder / "blocks", copier.block_bytes, 4)
            return BackgroundTransfers(copier, DiskTier(files, 4, files.close), SystemClock())

        self.driver: Driver = paged_driver(model, "fastest", num_host_blocks=4, make_mover=make)
        self.runner = self.driver.runner
        self.track: Track = self.driver.start(tokens(NUM_PROMPT, seed=1))
        self.driver.step((self.track, NUM_PROMPT))

    @property
    def slots(self) -> list[tuple[int, ...]]:
        """Of the prompt's blocks, per group."""
        return list(zip(*(table[: NUM_PROMPT // 16] for table in self.track.tables), strict=True))

    def next_logits(self) -> torch.Tensor | str:
        """Of the first drawn token, computed again each time."""
        self.track.computed = NUM_PROMPT
        del self.track.tokens[NUM_PROMPT + 1 :]
        (outcome,) = self.driver.step((self.track, 1))
        if isinstance(outcome, RowFailure):
            return outcome.reason
        return self.track.logits[-1].clone()

    def store(self) -> None:
        """Away from the device, to host slots 1, 2 and 3."""
        stores = tuple(HostStore(slots, number + 1) for number, slots in enumerate(self.slots))
        scrubs = tuple(SlotRef(group, slot) for slots in self.slots for group, slot in enumerate(slots))
        self.runner.run(moving(Moves(stores=stores), scrubs=scrubs))

    def load(self, host_slots: tuple[int | None, ...]) -> None:
        """Into slots where none of them lay before, in another order."""
        targets = [tuple(reversed(group)) for group in self._unused()]
        names = [block_name(number, block_size=16) for number in range(3)]
        loads = [
            Load(TransferId(10 + number), TenantId("acme"), names[number], host_slot, slots)
            for number, (host_slot, slots) in enumerate(zip(host_slots, zip(*targets, strict=True), strict=True))
        ]
        self.runner.run(moving(Moves(), *loads))
        self.await_results(3)
        for table, target in zip(self.track.tables, targets, strict=True):
            table[:3] = target

    def await_results(self, num: int) -> None:
        results = []
        give_up_s = time.monotonic() + 20
        while len(results) < num:
            results.extend(self.runner.transfers.finished())
            assert time.monotonic() < give_up_s
            time.sleep(0.001)
        assert all(result.ok for result in results)

    def _unused(self) -> list[list[int]]:
        return [[slot for slot in range(64) if slot not in table][:3] for table in self.track.tables]


@pytest.fixture
def bench_of(tiny: Callable[[str], LoadedModel], tmp_path: Path) -> Callable[[str, KvDtype], Bench]:
    return lambda name, kv_dtype: Bench(with_kv_dtype(tiny(name), kv_dtype), tmp_path)


@pytest.mark.parametrize(
    ("name", "kv_dtype"), [*((name, FLOAT32) for name in NAMES), ("llama", KvDtype.INT8), ("gpt_oss", KvDtype.FLOAT8)]
)
def test_logits_after_a_way_over_the_host_are_the_same(
    bench_of: Callable[[str, KvDtype], Bench], name: str, kv_dtype: KvDtype
) -> None:
    bench = bench_of(name, kv_dtype)
    before = bench.next_logits()
    bench.store()
    assert isinstance(bench.next_logits(), str)
    bench.load((1, 2, 3))
    after = bench.next_logits()
    assert isinstance(before, torch.Tensor)
    assert isinstance(after, torch.Tensor)
    assert torch.equal(before, after)
    bench.runner.transfers.close()


@pytest.mark.parametrize(
    ("name", "kv_dtype"),
    [("llama", FLOAT32), ("gpt_oss", FLOAT32), ("gpt_oss", KvDtype.INT8), ("llama", KvDtype.FLOAT8)],
)
def test_logits_after_a_way_over_the_disk_are_the_same(
    bench_of: Callable[[str, KvDtype], Bench], name: str, kv_dtype: KvDtype
) -> None:
    bench = bench_of(name, kv_dtype)
    before = bench.next_logits()
    bench.store()
    spills = tuple(spill(number, number + 1, block_name(number, block_size=16)) for number in range(3))
    bench.runner.run(moving(Moves(spills=spills, host_scrubs=(1, 2, 3))))
    bench.await_results(3)
    bench.load((None, None, None))
    after = bench.next_logits()
    assert isinstance(before, torch.Tensor)
    assert isinstance(after, torch.Tensor)
    assert torch.equal(before, after)
    bench.runner.transfers.close()


def test_blocks_of_a_scrubbed_host_slot_cannot_be_read(bench_of: Callable[[str, KvDtype], Bench]) -> None:
    bench = bench_of("llama", FLOAT32)
    bench.store()
    bench.runner.run(moving(Moves(host_scrubs=(2,))))
    bench.load((1, 2, 3))
    assert isinstance(bench.next_logits(), str)
    bench.runner.transfers.close()
