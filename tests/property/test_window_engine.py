"""The engine machine over models with window groups that are short of slots: nothing changes but how much is reused.

The digest model's token depends on every record in a window, so a window's slot that was given away too early, or not
copied, loaded or scrubbed, changes a token or fails its row. The engine's own checks tell that no slot is held by
nobody, and that running sequences never use up what is theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from cache_store.audit_mode import AuditMode
from cache_store.block_pool import BlockPool
from cache_store.digest import Hasher, xxh3_128
from cache_store.domain import Domain
from cache_store.groups import CacheGeometry, CacheGroup
from cache_store.lower_block import LowerBlock
from cache_store.pool_sizes import ABSENT, StepLimits, num_held
from cache_store.prefix_tree import Block, DomainRoot
from cache_store.quota import QuotaTable
from cache_store.tokens import PackedTokens, pack, unpack
from tests.property.test_engine_machine import TENANTS, VOCAB_SIZE, EngineMachine, four_bits, places, prompts
from tests.support.engines import Bench
from tests.support.manual_transfers import ManualMaker
from tests.support.quotas import quota_tables
from worker.digest_runner import INSTANT, Durations, full_group, sliding_group
from worker.engine_config import EngineConfig

pytestmark = pytest.mark.timeout(1_800)  # the nightly profile takes minutes


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
        audit=st.sampled_from([AuditMode.SAMPLED, AuditMode.SAMPLED, AuditMode.PARANOID]),
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
        audit: AuditMode,
    ) -> None:
        num_host_blocks, num_disk_blocks = num_lower
        geometry = make_geometry(block_size, windows, has_full)
        num_sequences, num_step_tokens = limits
        self.mover = ManualMaker(num_disk_blocks, seconds=lambda _: transfer_s)
        config = EngineConfig(
            num_step_tokens=num_step_tokens, num_max_sequences=num_sequences, num_max_waiting=6, audit=audit
        )
        self.audit = audit
        self.num_damaged = 0
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
            draw=lambda: 0.0,
        )
        self._begin(quotas, any(num_lower), hasher)

    @rule(place=places, prompt=prompts)
    def look_up(self, place: tuple[str, str], prompt: list[int]) -> None:
        """What is said to be reusable is what a search over every length finds."""
        domain, tokens, limit = self._domain(place), pack(prompt), len(prompt) - 1
        pool = self.bench.engine._pool
        pool.expire()
        oracle = Oracle(pool, domain, prompt)
        found = max(length for length in range(limit + 1) if oracle.is_usable(length)) if limit >= 0 else 0
        assert pool.match_length(domain, tokens, limit) == found
        loadable = max((length for length in range(limit + 1) if oracle.is_loadable(length)), default=0)
        assert self.bench.engine.lookup(domain, tokens).total == max(found, loadable)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "bench"):
            assert all(group.num_used == 0 for group in self.bench.engine._pool.windows.groups)


class Oracle:
    """What of a prompt can be reused, by looking at every block of a pool."""

    def __init__(self, pool: BlockPool, domain: Domain, prompt: list[int]) -> None:
        self._groups = [(each.group, each.size.reach) for each in pool.windows.groups]
        self._size = pool._block_size
        self._prompt = prompt
        paths = {_path(block): block for block in pool._tree.blocks() if block.root == domain.root}
        self._blocks: list[Block | LowerBlock] = []
        """Full blocks of the prompt: the device's, then those of lower tiers."""
        for end in range(self._size, len(prompt) + 1, self._size):
            block = paths.get(tuple(prompt[:end]))
            if block is None:
                break
            self._blocks.append(block)
        self._num_here = len(self._blocks)
        start = self._num_here * self._size
        self._next = [block for path, block in paths.items() if path[:start] == tuple(prompt[:start])]
        self._next = [block for block in self._next if len(_path(block)) == start + self._size]
        if pool.lower is not None:
            here = [block for block in self._blocks if isinstance(block, Block)]
            self._blocks += pool.lower.find(domain, here, pack(prompt), len(prompt))

    def is_usable(self, length: int) -> bool:
        """Whether the device has all that the query at `length` reads."""
        num_full, rest = divmod(length, self._size)
        if num_full < self._num_here or (num_full == self._num_here and not rest):
            return self._has_all(self._blocks, length)
        if num_full > self._num_here or self._size == 1:
            return False
        own = tuple(self._prompt[:length])
        return any(
            _path(block)[:length] == own and self._has_all([*self._blocks[: self._num_here], block], length)
            for block in self._next
        )

    def is_loadable(self, length: int) -> bool:
        """Whether lower tiers complete it, up to the end of a block of theirs."""
        num_full, rest = divmod(length, self._size)
        return not rest and self._num_here < num_full <= len(self._blocks) and self._has_all(self._blocks, length)

    def _has_all(self, blocks: Sequence[Block | LowerBlock], length: int) -> bool:
        read = [
            (group, at // self._size) for group, reach in self._groups for at in range(max(0, length - reach), length)
        ]
        return all(_has(blocks[at], group) for group, at in read)


def _has(block: Block | LowerBlock, group: int) -> bool:
    return block.slots[group] != ABSENT if isinstance(block, Block) else block.has(group)


def _path(block: Block) -> tuple[int, ...]:
    """All tokens from the first of the prompt to the block's last."""
    path: tuple[int, ...] = ()
    node: Block | DomainRoot | None = block
    while isinstance(node, Block):
        path = (*unpack(PackedTokens(node.tokens)), *path)
        node = node.parent
    return path


TestWindowEngine = WindowMachine.TestCase
