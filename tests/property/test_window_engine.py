"""The engine machine over models with window groups that are short of slots: nothing changes but how much is reused.

The digest model's token depends on every record in a window, so a window's slot that was given away too early, or not
copied, loaded or scrubbed, changes a token or fails its row. The engine's own checks tell that no slot is held by
nobody, and that running sequences never use up what is theirs.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from cache_store.digest import Hasher, xxh3_128
from cache_store.groups import CacheGeometry, CacheGroup
from cache_store.pool_sizes import StepLimits, num_held
from cache_store.quota import QuotaTable
from tests.property.test_engine_machine import TENANTS, VOCAB_SIZE, EngineMachine, four_bits
from tests.support.engines import Bench
from tests.support.manual_transfers import ManualMaker
from tests.support.quotas import quota_tables
from worker.digest_runner import INSTANT, Durations, full_group, sliding_group
from worker.engine_config import EngineConfig


def make_geometry(block_size: int, windows: tuple[int, ...], has_full: bool) -> CacheGeometry:
    """A group for each window, below a full one or without."""
    full: tuple[CacheGroup, ...] = (full_group(block_size),) if has_full else ()
    return CacheGeometry((*full, *(sliding_group(block_size, window) for window in windows)), block_size)


def short_slots(geometry: CacheGeometry, num_blocks: int, num_cached: int, limits: StepLimits) -> tuple[int, ...]:
    """What running sequences need, and `num_cached` slots for the cache."""
    return tuple(
        min(num_blocks, num_held(group, geometry.block_size, limits) + num_cached) if group.window else num_blocks
        for group in geometry.groups
    )


class WindowMachine(EngineMachine):
    """Pools in which blocks have no slot in some groups."""

    @initialize(
        num_blocks=st.sampled_from([24, 32, 48]),
        block_size=st.sampled_from([1, 2, 2, 3]),
        windows=st.sampled_from([(2,), (3,), (4,), (6,), (9,), (6, 2), (5, 3)]),
        has_full=st.sampled_from([True, True, False]),
        num_cached=st.sampled_from([0, 1, 3, 6, 12]),
        limits=st.sampled_from([(1, 3), (1, 7), (2, 4), (3, 3), (2, 9)]),
        hasher=st.sampled_from([xxh3_128, xxh3_128, four_bits]),
        durations=st.sampled_from([INSTANT, Durations(0.25, 0.01)]),
        quotas=quota_tables(TENANTS),
        num_lower=st.sampled_from([(0, 0), (6, 0), (12, 0), (6, 10), (20, 30)]),
        transfer_s=st.sampled_from([0.0, 0.0, 0.1]),
    )
    def start(  # type: ignore[override]  # another world, the same rules
        self,
        num_blocks: int,
        block_size: int,
        windows: tuple[int, ...],
        has_full: bool,
        num_cached: int,
        limits: tuple[int, int],
        hasher: Hasher,
        durations: Durations,
        quotas: QuotaTable,
        num_lower: tuple[int, int],
        transfer_s: float,
    ) -> None:
        num_host_blocks, num_disk_blocks = num_lower
        geometry = make_geometry(block_size, windows, has_full)
        num_sequences, num_step_tokens = limits
        self.mover = ManualMaker(num_disk_blocks, seconds=lambda _: transfer_s)
        config = EngineConfig(num_step_tokens=num_step_tokens, num_max_sequences=num_sequences, num_max_waiting=6)
        self.bench = Bench(
            num_blocks,
            vocab_size=VOCAB_SIZE,
            max_model_len=40,
            config=config,
            hasher=hasher,
            durations=durations,
            num_host_blocks=num_host_blocks,
            make_mover=self.mover if any(num_lower) else None,
            geometry=geometry,
            num_slots=short_slots(geometry, num_blocks, num_cached, StepLimits(num_sequences, num_step_tokens)),
        )
        self._begin(quotas, any(num_lower), hasher)


TestWindowEngine = WindowMachine.TestCase
