"""All window groups of a pool: how much of a prompt can be reused, and what holds the slots for it.

A hit of L tokens needs the blocks of the full groups up to L, which the prefix tree has, and in each window group the
slots of those that the query of token L reads. So the largest L counts for which every group has them: their longest
common boundary. Where a boundary inside a block would do, the end of that block would do as well, so the only other
candidate is the end of what the last block shares with the prompt. Owned by the pool; no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from cache_store.domain import TenantId
from cache_store.pool_sizes import ABSENT, WindowSize
from cache_store.prefix_tree import Block
from cache_store.quota import QuotaTable
from cache_store.usage import WindowLoad
from cache_store.window_order import Worth
from cache_store.window_slots import WindowSlots

Has = Callable[[int, int], bool]
"""Whether a group has a slot of the block with that number in the prompt."""


class Windows:
    """Without window groups there is nothing to do, and everything can be reused."""

    def __init__(self, sizes: Sequence[WindowSize], block_size: int, dropped: Collection[bytes]) -> None:
        self.groups = tuple(WindowSlots(size, dropped) for size in sizes)
        self._block_size = block_size
        self._reach = {size.group: size.reach for size in sizes}

    def __bool__(self) -> bool:
        return bool(self.groups)

    def __contains__(self, group: int) -> bool:
        """Whether the geometry's group of that number is one of them."""
        return any(each.group == group for each in self.groups)

    def fits(self, block: Block) -> bool:
        """Whether all groups have a slot of the block."""
        return all(block.slots[each.group] != ABSENT for each in self.groups)

    def has_run(self, chain: Sequence[Block], num_tokens: int) -> bool:
        """Whether the prompt can be reused up to `num_tokens` tokens inside the block after `chain`, which fits."""
        length = len(chain) * self._block_size + num_tokens
        return all(
            all(
                chain[at].slots[each.group] != ABSENT
                for at in range(max(0, length - self._reach[each.group]) // self._block_size, len(chain))
            )
            for each in self.groups
        )

    def usable(self, chain: Sequence[Block]) -> int:
        """Blocks of the chain that can be reused: up to the longest common boundary of the groups."""
        return self.boundary(len(chain), 0, lambda group, at: chain[at].slots[group] != ABSENT)

    def boundary(self, num_blocks: int, least: int, has: Has) -> int:
        """The largest number of leading blocks up to `num_blocks` that every group has what it needs for.

        `least` where there is none above it.
        """
        end = num_blocks
        while end > least:
            missing = self._missing(end, has)
            if missing is None:
                return end
            end = missing  # whatever ends between the two reads it too
        return least

    def _missing(self, end: int, has: Has) -> int | None:
        for each in self.groups:
            for at in range(end - 1, max(0, end - each.span) - 1, -1):
                if not has(each.group, at):
                    return at
        return None

    # holds on what a boundary reads

    def read_at(self, blocks: Sequence[Block]) -> Iterator[tuple[WindowSlots, Sequence[Block]]]:
        """Per group the blocks that are read from the end of `blocks` on."""
        for each in self.groups:
            yield each, blocks[max(0, len(blocks) - each.span) :]

    def hold_all(self, block: Block) -> None:
        """The beginning of the block is going to be copied: all its slots stay."""
        for each in self.groups:
            each.hold((block,))

    def let_go_all(self, block: Block) -> None:
        """It was copied, or will not be."""
        for each in self.groups:
            each.let_go((block,), Worth.END)

    def lock(self, blocks: Sequence[Block]) -> bool:
        """Keeps what is read from the end of `blocks` on. False, and nothing has changed, where there is no room."""
        return self.lock_part(blocks, 0, TenantId(""))

    def may_lock(self, blocks: Sequence[Block], part: float) -> bool:
        """Whether `lock` leaves a tenant with no more than that part of the cache's slots locked, in every group."""
        return all(
            each.num_locked(blocks[0].tenant) + each.num_unlocked(read) <= int(part * each.size.num_cached)
            for each, read in self.read_at(blocks)
        )

    def lock_part(self, blocks: Sequence[Block], num_more: int, tenant: TenantId) -> bool:
        """The same where `num_more` blocks of the tenant, which have no slots yet, follow and belong to it.

        There is room for those, for `reserve_part`, when this is True.
        """
        locked: list[tuple[WindowSlots, Sequence[Block]]] = []
        for each in self.groups:
            read = blocks[max(0, len(blocks) + num_more - each.span) :]
            if not each.lock(read):
                break
            locked.append((each, read))
            if not each.can_reserve(tenant, min(num_more, each.span)):
                break
        else:
            return True
        for each, read in locked:
            each.unlock(read)
        return False

    def reserve_part(self, blocks: Sequence[Block]) -> None:
        """Locked slots for what is read from the end of `blocks` on, which have none."""
        for each in self.groups:
            each.reserve(blocks[max(0, len(blocks) - each.span) :])

    def unlock(self, blocks: Sequence[Block]) -> None:
        """Ends what locked what is read from the end of `blocks` on."""
        for each, read in self.read_at(blocks):
            each.unlock(read)

    # for the pool

    def loads(self) -> tuple[WindowLoad, ...]:
        """How many slots of each group are used."""
        return tuple(
            WindowLoad(
                window=each.size.reach + 1,
                used_slots=each.num_used,
                total_slots=each.size.num_slots,
                cached_slots=each.num_cached,
                max_cached_slots=each.size.num_cached,
            )
            for each in self.groups
        )

    def move(self, block: Block, there: Block) -> None:
        """`there` is kept in place of `block`, which has equal contents."""
        for each in self.groups:
            each.move(block, there)

    def forget(self, blocks: Collection[Block]) -> None:
        """Blocks have left the tree."""
        for each in self.groups:
            each.forget(blocks)

    def set_quotas(self, quotas: QuotaTable) -> None:
        """Other quotas from now on."""
        for each in self.groups:
            each.set_quotas(quotas)

    def close(self, tenant: TenantId) -> None:
        """A tenant is deleted."""
        for each in self.groups:
            each.close(tenant)

    def drop(self, tenants: Collection[TenantId]) -> None:
        """Domains of `tenants` were dropped."""
        for each in self.groups:
            each.drop(tenants)

    def expect_scrubs(self, root: bytes) -> None:
        """A domain was dropped, or may have been."""
        for each in self.groups:
            each.expect_scrubs(root)

    @property
    def num_dropped(self) -> int:
        """Slots to look at that are to be overwritten some time."""
        return sum(each.num_dropped for each in self.groups)

    def take_scrubs(self, num_dropped: int) -> Iterable[tuple[int, int]]:
        """(group, slot) to be overwritten by the next plan: what must be, and so many that can wait."""
        for each in self.groups:
            for slot in (*each.take_scrubs(), *each.take_dropped(num_dropped)):
                yield each.group, slot

    def check_invariants(self, blocks: Sequence[Block], in_tree: Iterable[Block]) -> None:
        """Raises AssertionError where the books do not agree; `blocks` are all of the pool."""
        found = set(in_tree) if self.groups else set()
        for each in self.groups:
            each.check_invariants(found)
            used = [block for block in blocks if block.slots[each.group] != ABSENT]
            assert len(used) == each.num_used, "a slot is free and has a block"
            assert all(block.ref_count or block in found for block in used), "an unused block has a slot"
