"""Where the blocks of running requests and cached prefixes lie, as numbers, for the operator.

What is looked at is bounded, so that a look takes milliseconds between two steps, however large the caches are. Tells
places, holders and whose they are: no tokens, digests or names of anything. Changes nothing, not even recency. Called
on the engine's thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from heapq import nlargest
from itertools import chain, islice
from typing import NamedTuple, Protocol

from cache_store.block_pool import BlockPool
from cache_store.domain import TenantId
from cache_store.hot_prefixes import order_of
from cache_store.lower_block import LowerBlock, Stay
from cache_store.prefix_tree import Block
from cache_store.tier_kind import TierKind
from cache_store.tokens import count
from worker.pins import PinTable
from worker.requests import RequestKey
from worker.sequence import Sequence

MAX_BLOCKS = 8_192
"""Of the device's pool; those of the lowest numbers."""
MAX_SEQUENCES = 128
MAX_LINES = 64
MAX_CELLS = 4_096
"""Over all sequences and lines."""
MAX_PINNED = 4_096
MAX_LOWER_ENDS = 1_024
OTHER_TENANT = 255
"""In the pool, of a tenant for which there was no number."""


class BlockState(IntEnum):
    """Of a block of the device's pool."""

    FREE = 0
    CACHED = 1
    """In the prefix tree, held by nobody."""
    WRITING = 2
    """Held and not full yet, or not to be shared."""
    HELD = 3
    """In the prefix tree, with one holder."""
    SHARED = 4
    """In the prefix tree, with several."""


class Mark(IntFlag):
    """Of a block of a sequence or line."""

    COMMITTED = 1
    """It is in the prefix tree: others of its domain find it."""
    BRANCHED = 2
    """Several lines of blocks go on from it or from below it."""
    PINNED = 4
    REUSED = 8
    """It was there before the sequence was."""
    LOADED = 16
    """It came from a lower tier or from another worker for the sequence."""
    COPIED = 32
    """It began as a copy of another block."""
    RESERVED = 64
    """Held for tokens that are still to come."""


_COMMITTED, _BRANCHED, _PINNED, _REUSED, _LOADED, _COPIED, _RESERVED = map(int, Mark)
_CACHED, _WRITING, _HELD, _SHARED = (int(each) for each in BlockState if each)


class SequenceState(IntEnum):
    """What a sequence does."""

    QUEUED = 0
    LOADING = 1
    """It waits for blocks of a lower tier or of another worker."""
    PREFILL = 2
    DECODE = 3


class Cell(NamedTuple):
    """One logical block: where it lies. A tuple: thousands are made between two steps."""

    tier: TierKind
    number: int
    """Of its slot there."""
    holders: int
    """Sequences and pins on the device, loads below it."""
    uid: int
    """Names what the block holds: another one where its slot was used again. 0 below the device."""
    marks: int
    """Of `Mark`, together."""


@dataclass(frozen=True, slots=True)
class SequenceLook:
    """One sequence of a request."""

    key: RequestKey
    tenant: TenantId
    samples: tuple[int, ...]
    state: SequenceState
    prompt_tokens: int
    num_tokens: int
    num_computed: int
    num_cached: int
    cells: tuple[Cell, ...]
    copied_from: int | None
    """Number of the device's block of which the one that is marked so began as a copy."""


@dataclass(frozen=True, slots=True)
class LineLook:
    """Cached blocks from the beginning of a prefix to its end, over all tiers."""

    tenant: TenantId
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class PoolLook:
    """The device's blocks by number, a byte each, and of their uids the lower 16 bits."""

    num_blocks: int
    """In all; more than are told where the pool is large."""
    states: bytes
    tenants: bytes
    """Places in `tenant_names`."""
    tenant_names: tuple[TenantId, ...]
    uids: bytes
    """Little-endian."""


@dataclass(frozen=True, slots=True)
class Look:
    """At one moment between two steps."""

    pool: PoolLook
    sequences: tuple[SequenceLook, ...]
    lines: tuple[LineLook, ...]
    """Those used last first."""
    is_complete: bool
    """Whether nothing was left out."""


class Sequences(Protocol):
    """Whoever knows the sequences; the scheduler."""

    @property
    def running(self) -> tuple[Sequence, ...]: ...

    @property
    def waiting(self) -> tuple[Sequence, ...]: ...


class BlockLook:
    """Of one engine."""

    def __init__(self, pool: BlockPool, sequences: Sequences, pins: PinTable, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._sequences = sequences
        self._pins = pins

    def take(self, first: frozenset[RequestKey] = frozenset()) -> Look:
        """How it is now; the sequences of `first` are told whatever else is left out."""
        pinned = {block.uid for block in islice(self._pins.blocks(), MAX_PINNED)}
        budget = _Budget(MAX_CELLS, self._block_size)
        everybody = (*self._sequences.running, *self._sequences.waiting)
        order = sorted(everybody, key=lambda each: each.owner.key not in first)
        sequences = [budget.sequence(each, pinned) for each in order[:MAX_SEQUENCES]]
        lines = [budget.line(each, pinned) for each in self._leaves()]
        is_complete = len(everybody) <= MAX_SEQUENCES and None not in sequences and None not in lines
        return Look(
            pool=self._blocks(),
            sequences=tuple(each for each in sequences if each is not None),
            lines=tuple(each for each in lines if each is not None),
            is_complete=is_complete and len(self._pool.blocks) <= MAX_BLOCKS,
        )

    def _blocks(self) -> PoolLook:
        blocks = list(islice(reversed(self._pool.blocks), MAX_BLOCKS))
        numbers: dict[TenantId, int] = {}
        tenants = bytearray(len(blocks))
        for at, block in enumerate(blocks):
            if block.ref_count or block.parent is not None:
                number = numbers.get(block.tenant)
                if number is None:
                    number = len(numbers) if len(numbers) < OTHER_TENANT else OTHER_TENANT
                    if number < OTHER_TENANT:
                        numbers[block.tenant] = number
                tenants[at] = number
        return PoolLook(
            num_blocks=len(self._pool.blocks),
            states=bytes(map(_state, blocks)),
            tenants=bytes(tenants),
            tenant_names=tuple(numbers),
            uids=array("H", [block.uid & 0xFFFF for block in blocks]).tobytes(),
        )

    def _leaves(self) -> list[Block | LowerBlock]:
        """Ends of the lines that were used last: of the device's, and of those that were laid down first below it."""
        blocks = islice(reversed(self._pool.blocks), MAX_BLOCKS)
        ends = (each for each in blocks if each.in_tree and not (each.children or each.ref_count))
        lower = self._pool.lower
        below = (
            () if lower is None else islice((each for each in lower.leaves() if each.device is None), MAX_LOWER_ENDS)
        )
        lines: dict[Block | LowerBlock, None] = dict.fromkeys(chain(map(_end, ends), below))
        return nlargest(MAX_LINES, lines, key=order_of)


def _end(block: Block) -> Block | LowerBlock:
    """The end of the line that goes on below a block in lower tiers, the newest where there are several."""
    node: Block | LowerBlock = block
    below = block.lower
    while below is not None and below.children:
        node = below = next(reversed(below.children.values()))
    return node


def _state(block: Block) -> int:
    if not block.ref_count:
        return 0 if block.parent is None else _CACHED
    if block.parent is None:
        return _WRITING
    return _SHARED if block.ref_count > 1 else _HELD


class _Budget:
    """How many cells may still be told."""

    def __init__(self, num_cells: int, block_size: int) -> None:
        self._num_left = num_cells
        self._block_size = block_size

    def _takes(self, num_cells: int) -> bool:
        if num_cells > self._num_left:
            return False
        self._num_left -= num_cells
        return True

    def sequence(self, sequence: Sequence, pinned: set[int]) -> SequenceLook | None:
        """None where there is no room for it."""
        if not self._takes(len(sequence.blocks) + len(sequence.reserved)):
            return None
        owner = sequence.owner
        copied = sequence.copied
        if sequence.copy_from is not None:
            copied = (len(sequence.blocks), sequence.copy_from.source.number)
        return SequenceLook(
            key=owner.key,
            tenant=owner.domain.tenant,
            samples=sequence.samples,
            state=_what(sequence),
            prompt_tokens=count(owner.request.prompt),
            num_tokens=sequence.num_tokens,
            num_computed=sequence.num_computed,
            num_cached=sequence.num_cached,
            cells=tuple(self._cells(sequence, pinned, None if copied is None else copied[0])),
            copied_from=None if copied is None else copied[1],
        )

    def line(self, leaf: Block | LowerBlock, pinned: set[int]) -> LineLook | None:
        """None where there is no room for it."""
        cells: list[Cell] = []
        node: object = leaf
        while isinstance(node, Block | LowerBlock) and len(cells) <= self._num_left:
            if isinstance(node, LowerBlock) and node.device is not None:
                node = node.device
            if isinstance(node, Block):
                cells.append(_cell(node, pinned, 0))
            else:
                cells.append(_lower_cell(node))
            node = node.parent
        cells.reverse()
        return LineLook(leaf.tenant, tuple(cells)) if self._takes(len(cells)) else None

    def _cells(self, sequence: Sequence, pinned: set[int], copied: int | None) -> Iterator[Cell]:
        for at, block in enumerate(sequence.blocks):
            mark = _COPIED if at == copied else 0
            if at in sequence.loaded:
                mark |= _LOADED
            if (at + 1) * self._block_size <= sequence.num_cached:
                mark |= _REUSED
            yield _cell(block, pinned, mark)
        for block in sequence.reserved:
            yield _cell(block, pinned, _RESERVED)


def _what(sequence: Sequence) -> SequenceState:
    if sequence.id is None:
        return SequenceState.LOADING if sequence.waits_for_swap else SequenceState.QUEUED
    return SequenceState.PREFILL if sequence.is_prefilling else SequenceState.DECODE


def _cell(block: Block, pinned: set[int], mark: int) -> Cell:
    if block.in_tree:
        mark |= _COMMITTED
        if block.shared:
            mark |= _BRANCHED
    if block.uid in pinned:
        mark |= _PINNED
    return Cell(TierKind.DEVICE, block.number, block.ref_count, block.uid, mark)


def _lower_cell(node: LowerBlock) -> Cell:
    stay: Stay | None = node.host or node.disk
    tier = TierKind.HOST if node.host is not None else TierKind.DISK
    mark = _COMMITTED | (_BRANCHED if node.shared else 0)
    return Cell(tier, -1 if stay is None else stay.slot, node.ref_count, 0, mark)
