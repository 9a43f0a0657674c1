"""The block pool of a device: ref-counted slots under a prefix tree, with leaf-first LRU eviction.

Pure numbers: it says which slots hold what and never touches a tensor. Owned by the engine's thread; no locks.

Three states of a block: *held* (ref_count > 0), *cached* (in the tree, nobody holds it, in the LRU list), or gone, its
slots unused. Two invariants carry the rest: a held block's ancestors are held, and in the LRU list descendants stand
before ancestors. So the oldest cached block is always a leaf, and whoever holds a block also holds its ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from cache_store.digest import Hasher, xxh3_128
from cache_store.domain import Domain, DomainTag
from cache_store.events import BlockChange, BlockEvent
from cache_store.groups import CacheGeometry
from cache_store.lru import LruList
from cache_store.prefix_tree import Block, PrefixTree
from cache_store.tiers import Granted, Match, PartialMatch, Short, TierKind
from cache_store.tokens import TOKEN_BYTES, PackedTokens


class BlockPool:
    """Blocks of one worker's device; implements `cache_store.tiers.Tier`."""

    def __init__(self, geometry: CacheGeometry, num_blocks: int, hasher: Hasher = xxh3_128) -> None:
        if num_blocks < 1:
            raise ValueError("a pool needs at least one block")
        self._block_size = geometry.block_size
        self._num_blocks = num_blocks
        self._num_groups = len(geometry.groups)
        self._tree = PrefixTree(geometry.block_size, hasher)
        self._cached = LruList()
        self._unused: list[list[int]] = [list(range(num_blocks - 1, -1, -1)) for _ in geometry.groups]
        self._last_root: list[list[bytes | None]] = [[None] * num_blocks for _ in geometry.groups]
        self._next_uid = 0
        self._num_held = 0
        self._changes: list[tuple[DomainTag, BlockChange, bytes]] = []
        self._next_event = 0

    @property
    def kind(self) -> TierKind:
        """The device."""
        return TierKind.DEVICE

    @property
    def num_blocks(self) -> int:
        """Capacity."""
        return self._num_blocks

    @property
    def num_available(self) -> int:
        """Unused and cached blocks."""
        return self._num_blocks - self._num_held

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""
        return self._num_held

    @property
    def num_used(self) -> int:
        """Held and cached blocks."""
        return self._num_held + len(self._cached)

    def match_length(self, domain: Domain, tokens: PackedTokens, max_tokens: int) -> int:
        """See `Tier.match_length`."""
        chain = self._tree.match(domain, tokens, max_tokens)
        run = self._tree.longest_run(domain, chain, tokens, max_tokens)
        return len(chain) * self._block_size + (run[1] if run else 0)

    def match_and_pin(self, domain: Domain, tokens: PackedTokens, max_tokens: int) -> Match:
        """See `Tier.match_and_pin`."""
        chain = self._tree.match(domain, tokens, max_tokens)
        run = self._tree.longest_run(domain, chain, tokens, max_tokens)
        match = Match(tuple(chain), PartialMatch(*run) if run else None)
        for block in match.pinned:
            self._hold(block)
        return match

    def allocate(self, domain: Domain, num_blocks: int) -> Granted | Short:
        """See `Tier.allocate`."""
        if num_blocks > self.num_available:
            return Short(self.num_available)
        blocks: list[Block] = []
        scrubs: list[tuple[int, int]] = []
        for _ in range(num_blocks):
            if not self._unused[0]:
                self._evict(self._cached.pop_oldest())
            block = Block(self._next_uid, tuple(unused.pop() for unused in self._unused), domain.root)
            self._next_uid += 1
            scrubs += [place for place in enumerate(block.slots) if self._holds_foreign_bytes(place, domain)]
            blocks.append(block)
        self._num_held += num_blocks
        return Granted(tuple(blocks), tuple(scrubs))

    def commit(self, domain: Domain, parent: Block | None, block: Block, tokens: PackedTokens) -> Block:
        """See `Tier.commit`."""
        assert len(tokens) == self._block_size * TOKEN_BYTES, "only full blocks are shared"
        assert not block.in_tree, "a block is committed once"
        assert block.ref_count == 1, "a block that is shared before its commit would change under its other holders"
        assert parent is None or (parent.in_tree and parent.ref_count > 0), "the parent must be resident and held"
        standing = self._tree.insert(domain, parent, block, tokens)
        if standing is block:
            self._changes.append((self._tree.tag_of(block), BlockChange.STORED, block.digest))
        else:
            self._hold(standing)
            self.release((block,))
        return standing

    def pin(self, blocks: Sequence[Block]) -> None:
        """See `Tier.pin`."""
        for block in blocks:
            assert block.ref_count > 0, "pin adds a holder; match_and_pin makes the first"
            block.ref_count += 1

    def release(self, blocks: Sequence[Block]) -> None:
        """See `Tier.release`."""
        for block in reversed(blocks):
            assert block.ref_count > 0, f"{block} is released more often than it is held"
            block.ref_count -= 1
            if block.ref_count:
                continue
            self._num_held -= 1
            if block.in_tree:
                self._cached.append(block)
            else:
                self._give_back_slots(block)

    def drain_events(self) -> tuple[BlockEvent, ...]:
        """What changed since the last call, in order, one event per run of equal domain and change."""
        events = []
        for (tag, change), run in groupby(self._changes, key=lambda item: item[:2]):
            events.append(BlockEvent(tag, self._next_event, change, b"".join(item[2] for item in run)))
            self._next_event += 1
        self._changes = []
        return tuple(events)

    def snapshot(self) -> dict[DomainTag, bytes]:
        """Packed digests of all matchable blocks by domain, parent first."""
        return self._tree.digests()

    def check_invariants(self) -> None:
        """Raises AssertionError where the pool's books do not agree; walks everything."""
        self._tree.check_invariants()
        order = {block.uid: age for age, block in enumerate(self._cached)}
        assert len(order) == len(self._cached)
        slots_in_tree: list[set[int]] = [set() for _ in range(self._num_groups)]
        num_in_tree = num_held_in_tree = 0
        for block in self._tree.blocks():
            num_in_tree += 1
            num_held_in_tree += block.ref_count > 0
            assert (block.ref_count == 0) == (block.uid in order), f"{block}: cached exactly when nobody holds it"
            parent = block.parent
            if isinstance(parent, Block):
                assert parent.ref_count > 0 or block.ref_count == 0, f"{block} is held, its parent is not"
                if parent.ref_count == 0:
                    assert order[block.uid] < order[parent.uid], f"{block} would be evicted after its parent"
            for group, slot in enumerate(block.slots):
                assert slot not in slots_in_tree[group], f"slot {slot} of group {group} belongs to two blocks"
                slots_in_tree[group].add(slot)
                assert self._last_root[group][slot] == block.root
        assert num_in_tree == num_held_in_tree + len(self._cached)
        for group, unused in enumerate(self._unused):
            assert len(set(unused)) == len(unused), "an unused slot is listed twice"
            assert slots_in_tree[group].isdisjoint(unused), "a slot is used and unused"
            assert len(unused) == self._num_blocks - self.num_used, "slots were lost or made up"
        assert 0 <= num_held_in_tree <= self._num_held <= self._num_blocks

    def _hold(self, block: Block) -> None:
        if block.ref_count == 0:
            self._cached.remove(block)
            self._num_held += 1
        block.ref_count += 1

    def _holds_foreign_bytes(self, place: tuple[int, int], domain: Domain) -> bool:
        group, slot = place
        last = self._last_root[group][slot]
        self._last_root[group][slot] = domain.root
        return last is not None and last != domain.root

    def _evict(self, block: Block) -> None:
        tag = self._tree.remove(block)
        self._changes.append((tag, BlockChange.REMOVED, block.digest))
        self._give_back_slots(block)

    def _give_back_slots(self, block: Block) -> None:
        for unused, slot in zip(self._unused, block.slots, strict=True):
            unused.append(slot)
