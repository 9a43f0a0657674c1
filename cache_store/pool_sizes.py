"""How large the pools of a model's cache groups are: slots of every group, out of bytes or of a number of blocks.

A block has a place in the groups with full attention as long as it exists. In a *window group*, that is a sliding one
with fewer slots than blocks, it has a slot only while a running sequence reads it, or while it is kept for a later hit.
So such a group needs H + C slots:

* H is what running sequences can hold at most, all together, in any step. It is always there: nobody waits for it.
* C is what the cache keeps beside it. A hit needs the last window of what it reuses and nothing before, so one window
  for each conversation that the full groups keep would do; a conversation is hit at the end of its prompt or of its
  answer, and other conversations branch off it, so C is `window / 4,096` of the blocks: room for one window at the end
  of every 4,096 tokens. At least an eighth of the blocks, since many conversations are shorter, at least H, so that
  those that run can all be kept when they end, and at most a half: where a window is as long as the conversations,
  all of their blocks are read.

Pure; used by workers, which allocate so much, and by whoever plans them.
"""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.groups import CacheGeometry, CacheGroup, GroupKind

ABSENT = -1
"""In place of a slot: the block has none in that group."""

TOKENS_PER_WINDOW = 4_096
"""For which the cache keeps one window."""
MIN_CACHED_PART = 1 / 8
"""Of the blocks, for which the cache of a window group has slots."""
MAX_CACHED_PART = 1 / 2


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What an engine computes at once."""

    num_sequences: int
    """That run at once."""
    num_step_tokens: int
    """New tokens of all of them in one step."""


@dataclass(frozen=True, slots=True)
class WindowSize:
    """The slots of one window group. Raises ValueError where running sequences could use them up."""

    group: int
    """Its number in the geometry."""
    reach: int
    """Tokens before a token that its query reads."""
    span: int
    """Blocks right before a block's edge that a query there reads."""
    num_slots: int
    num_held: int
    """What running sequences hold at most (H)."""

    def __post_init__(self) -> None:
        if self.num_slots < self.num_held:
            raise ValueError(
                f"group {self.group} has {self.num_slots} slots, and running sequences may hold {self.num_held}; "
                "give it as many, or one per block"
            )

    @property
    def num_cached(self) -> int:
        """What the cache may keep beside it (C)."""
        return self.num_slots - self.num_held


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """What a runner allocates."""

    num_blocks: int
    num_slots: tuple[int, ...]
    """Per group, in the geometry's order."""

    def size_bytes(self, geometry: CacheGeometry) -> int:
        """Bytes of all pools."""
        return sum(group.bytes_per_block * num for group, num in zip(geometry.groups, self.num_slots, strict=True))

    def bytes_per_token(self, geometry: CacheGeometry) -> int:
        """Bytes that each token takes, however long its sequence is: in the groups with a slot for every block."""
        return self._block_bytes(geometry) // geometry.block_size

    def bytes_per_sequence(self, geometry: CacheGeometry) -> int:
        """Bytes that a running sequence takes beside that, at most, between two steps: windows, and the block begun."""
        return sum(
            (span(group.window, geometry.block_size) + 1) * group.bytes_per_block
            for group, num in zip(geometry.groups, self.num_slots, strict=True)
            if num < self.num_blocks
        )

    def _block_bytes(self, geometry: CacheGeometry) -> int:
        groups = zip(geometry.groups, self.num_slots, strict=True)
        return sum(group.bytes_per_block for group, num in groups if num == self.num_blocks)


def reach(window: int) -> int:
    """Tokens before a token that its query reads.

    Whoever writes a block goes on reading it until it is full, so a window of one token counts as one of two.
    """
    return max(window, 2) - 1


def span(window: int, block_size: int) -> int:
    """Blocks right before a block's edge that a query there reads."""
    return -(-reach(window) // block_size)


def num_held(group: CacheGroup, block_size: int, limits: StepLimits) -> int:
    """Slots of a sliding group that running sequences hold at most, whatever runs.

    Each has `span` full blocks behind it, the block that it has begun, and one whose beginning is copied for it. A step
    that computes `r` tokens of it writes at most `r // block_size + 1` blocks beside the begun one.
    """
    per_sequence = span(group.window, block_size) + 3
    return limits.num_sequences * per_sequence + limits.num_step_tokens // block_size


def bytes_held(geometry: CacheGeometry, num_tokens: int) -> int:
    """What a running sequence of `num_tokens` computed tokens holds between two steps where no group is short of slots.

    For each token its part of the full groups, and in each sliding group at most its window and the block begun.
    """
    num_blocks = -(-num_tokens // geometry.block_size)
    first = num_tokens // geometry.block_size
    total = 0
    for group in geometry.groups:
        num_gone = max(0, first - span(group.window, geometry.block_size)) if group.kind is GroupKind.SLIDING else 0
        total += (num_blocks - num_gone) * group.bytes_per_block
    return total


def pool_sizes(geometry: CacheGeometry, num_blocks: int, limits: StepLimits) -> PoolSizes:
    """Pools for a number of blocks."""
    return PoolSizes(
        num_blocks, tuple(_num_slots(group, geometry.block_size, num_blocks, limits) for group in geometry.groups)
    )


def pool_sizes_within(geometry: CacheGeometry, size_bytes: int, limits: StepLimits) -> PoolSizes | None:
    """The pools with most blocks that fit into `size_bytes`; None where not even one block does.

    Where no group has full attention, a block itself costs no bytes: there are as many as the share of them for which
    the cache has slots makes of C.
    """
    low, high = 0, 1
    while pool_sizes(geometry, high, limits).size_bytes(geometry) <= size_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if pool_sizes(geometry, middle, limits).size_bytes(geometry) <= size_bytes:
            low = middle
        else:
            high = middle
    return pool_sizes(geometry, low, limits) if low else None


def window_sizes(geometry: CacheGeometry, sizes: PoolSizes, limits: StepLimits) -> tuple[WindowSize, ...]:
    """The window groups of pools: sliding groups that have not a slot for every block.

    Raises ValueError for pools that such an engine could use up.
    """
    block_size = geometry.block_size
    return tuple(
        WindowSize(
            number, reach(group.window), span(group.window, block_size), num, num_held(group, block_size, limits)
        )
        for number, (group, num) in enumerate(zip(geometry.groups, sizes.num_slots, strict=True))
        if group.kind is GroupKind.SLIDING and num < sizes.num_blocks
    )


def _num_slots(group: CacheGroup, block_size: int, num_blocks: int, limits: StepLimits) -> int:
    if group.kind is not GroupKind.SLIDING:
        return num_blocks
    held = num_held(group, block_size, limits)
    part = min(MAX_CACHED_PART, max(MIN_CACHED_PART, group.window / TOKENS_PER_WINDOW))
    return min(num_blocks, held + max(held, int(part * num_blocks)))
