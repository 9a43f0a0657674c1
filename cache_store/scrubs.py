"""Slots of a device whose bytes have to go, though nobody wants the slots: those of domains that were dropped.

A slot that is given to another domain is scrubbed then (`BlockPool.allocate`); what stands here is scrubbed without
that, a part with each plan. Owned by the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from cache_store.domain import TenantId
from cache_store.pool_sizes import ABSENT
from cache_store.prefix_tree import Block

_NOBODY = b"dropped"
"""Root of an unused block with a dropped domain's bytes: no domain's, so that whoever gets its slots has them scrubbed.
"""

MAX_ROOTS = 65_536
"""Domains that are remembered so; beyond it only those of which blocks are held."""

MAX_BLOCKS_PER_PLAN = 1_024
BYTES_PER_PLAN = 32 * 1024 * 1024
"""About 10 ms of a CPU."""
NUM_PLANS = 512
"""In which a whole pool is scrubbed, where that is more for each: large pools lie on fast devices."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a worker had of the domains that it dropped, by tier."""

    device_blocks: int = 0
    host_blocks: int = 0
    disk_blocks: int = 0
    held_blocks: int = 0
    """Of the device's, those that requests still hold: their bytes go when the requests end."""

    def __add__(self, other: Dropped) -> Dropped:
        return Dropped(
            self.device_blocks + other.device_blocks,
            self.host_blocks + other.host_blocks,
            self.disk_blocks + other.disk_blocks,
            self.held_blocks + other.held_blocks,
        )


def slots_of(block: Block) -> list[tuple[int, int]]:
    """(group, slot) of a block's slots."""
    return [(group, slot) for group, slot in enumerate(block.slots) if slot != ABSENT]


def num_scrubbed(bytes_per_block: int, num_blocks: int) -> int:
    """Blocks to scrub with one plan, so that nobody's step gets long by it, of a pool of `num_blocks`."""
    num_wanted = max(1, BYTES_PER_PLAN // max(1, bytes_per_block), num_blocks // NUM_PLANS)
    return min(MAX_BLOCKS_PER_PLAN, num_wanted)


class Scrubs:
    """Unused blocks that wait to be scrubbed, and the domains whose blocks will when they become unused."""

    __slots__ = ("_queue", "num_per_plan", "roots")

    def __init__(self, bytes_per_block: int, num_blocks: int) -> None:
        self.num_per_plan = num_scrubbed(bytes_per_block, num_blocks)
        self._queue: list[Block] = []
        """Those that were given away meanwhile count no more."""
        self.roots: set[bytes] = set()
        """Of domains that were dropped, or may have been. Requests run in them: what they let go of is scrubbed."""

    def __len__(self) -> int:
        """Blocks to look at: none, once everything is scrubbed."""
        return len(self._queue)

    def begin(self, blocks: Iterable[Block], roots: Collection[bytes], tenants: Collection[TenantId]) -> int:
        """Domains of `tenants` were dropped; how many of `blocks`, which are all of the pool, are held of them.

        All unused ones of the tenants are taken: those that were evicted before held the same bytes.
        """
        held: set[bytes] = set()
        unused: list[Block] = []
        num_held = 0
        for block in blocks:
            if block.ref_count:
                held.add(block.root)
                num_held += block.root in roots
            elif block.parent is None and block.tenant in tenants:
                unused.append(block)
        self._remember(roots, lambda: held)
        self.add(unused)
        return num_held

    def expect(self, blocks: Iterable[Block], root: bytes) -> None:
        """What is held of a domain from now on is scrubbed when it is let go of; `blocks` are all of the pool."""
        self._remember((root,), lambda: {block.root for block in blocks if block.ref_count})

    def add(self, blocks: Iterable[Block]) -> None:
        """Takes unused blocks, those that hold somebody's bytes."""
        for block in blocks:
            if block.root and block.root != _NOBODY:
                block.root = _NOBODY
                self._queue.append(block)

    def drain(self, num_most: int) -> tuple[tuple[int, int], ...]:
        """(group, slot) of at most `num_most` blocks: to be overwritten by the next plan."""
        scrubs: list[tuple[int, int]] = []
        while self._queue and num_most:
            block = self._queue.pop()
            if block.root != _NOBODY:
                continue  # scrubbed, or given to somebody
            block.root = block.tokens = block.digest = b""
            scrubs += slots_of(block)
            num_most -= 1
        return tuple(scrubs)

    def trust(self, root: bytes) -> None:
        """A domain that may have been dropped was not."""
        self.roots.discard(root)

    def _remember(self, roots: Collection[bytes], held: Callable[[], set[bytes]]) -> None:
        if len(self.roots) + len(roots) > MAX_ROOTS:
            self.roots &= held()
        self.roots.update(roots)

    def check_invariants(self, blocks: Iterable[Block]) -> None:
        """Raises AssertionError where the books do not agree with `blocks`, which are all of the pool."""
        queued = {id(block) for block in self._queue}
        for block in blocks:
            if block.root == _NOBODY:
                assert not block.ref_count, "a dropped block was given away and belongs to nobody"
                assert block.parent is None, "a dropped block can be matched"
                assert id(block) in queued, "a dropped block is not going to be scrubbed"
