"""A disk that is slower than what comes: who has most on its way loses writes, a strict tenant none.

Real files and threads; the disk is made slower, so that one tenant's flood fills the way to it all the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cache_store.block_files import BlockFiles
from cache_store.block_name import BlockName
from cache_store.clock import SystemClock
from cache_store.domain import Domain
from cache_store.quota import TierShare
from cache_store.tier_kind import TierKind
from tests.support.engines import ACME, GLOBEX, Bench, sampling
from tests.support.quotas import make_table
from worker.block_copier import BlockCopier
from worker.transfers import BackgroundTransfers, DiskTier

NUM_BLOCKS, NUM_DISK_BLOCKS, NUM_STAGED = 128, 1_024, 24
PROMPT_BLOCKS, NUM_PROMPTS, FLOOD_BLOCKS = 15, 6, 60
WRITE_S = 0.002


class SlowFiles(BlockFiles):
    """A disk that takes its time."""

    def write(self, name: BlockName, data: bytes | bytearray | memoryview) -> None:
        time.sleep(WRITE_S)
        super().write(name, data)


@contextmanager
def slow_bench(folder: Path) -> Iterator[Bench]:
    """An engine over such a disk."""

    def make_mover(copier: BlockCopier) -> BackgroundTransfers:
        files = SlowFiles(folder, copier.block_bytes, NUM_DISK_BLOCKS)
        disk = DiskTier(files, NUM_DISK_BLOCKS, files.close)
        return BackgroundTransfers(copier, disk, SystemClock(), staging_bytes=NUM_STAGED * copier.block_bytes)

    bench = Bench(NUM_BLOCKS, num_host_blocks=NUM_BLOCKS, make_mover=make_mover, vocab_size=60_000, max_model_len=2_048)
    try:
        yield bench
    finally:
        bench.runner.transfers.close()


def ask(bench: Bench, domain: Domain, first: int, num_blocks: int) -> int:
    """Sends a prompt and waits for its end; tokens that were reused."""
    key = bench.submit(range(first, first + 4 * num_blocks + 1), sampling(max_tokens=1), domain=domain)
    while not bench.answers[key].has_ended:
        bench.step()
        if not bench.engine.has_work:
            time.sleep(0.001)
    bench.assert_exact(key)
    cached = bench.answers[key].cached_tokens
    assert cached is not None
    return cached


def rest(bench: Bench, seconds: float) -> None:
    """As an engine's thread does between requests."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        bench.engine.poll()
        while bench.engine.has_work:
            bench.step()
        time.sleep(0.002)


def hits(folder: Path, *, is_flooded: bool) -> tuple[list[int], int]:
    """What a strict tenant reuses when it asks again for what only the disk can hold, and writes that failed."""
    with slow_bench(folder) as bench:
        bench.engine.set_quotas(make_table(acme=TierShare(0.25, 0.25)))
        found = []
        for turn in range(2 * NUM_PROMPTS):
            if is_flooded:
                ask(bench, GLOBEX, 10_000 + turn * 300, FLOOD_BLOCKS)
            found.append(ask(bench, ACME, turn % NUM_PROMPTS * 100, PROMPT_BLOCKS))
            rest(bench, 0.15)
        failed = {tier.tier: tier.failed_blocks for tier in bench.engine.load().tiers}
    return found, failed[TierKind.DISK]


@pytest.mark.timeout(120)
def test_a_strict_tenant_finds_on_disk_what_it_would_find_alone(tmp_path: Path) -> None:
    alone, num_failed_alone = hits(tmp_path / "alone", is_flooded=False)
    flooded, num_failed = hits(tmp_path / "flooded", is_flooded=True)
    assert num_failed_alone == 0
    assert num_failed > 0, "the disk keeps up: this is no flood"
    assert sum(alone) > 0, "the disk brings nothing back"
    assert flooded == alone
