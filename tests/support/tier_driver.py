"""Drives a pool with tiers below, and asserts at every step that what is found is what was stored.

Contents are those of `tests/support/tier_world.py`: whatever the pool says lies in a slot, is compared with what really
lies there. Requests compute or load; what is on its way ends when the test says so, well or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.digest import chain
from cache_store.domain import Domain
from cache_store.lower_block import LowerBlock, StayState
from cache_store.policy import EvictionPolicy, Outcome
from cache_store.prefix_tree import Block
from cache_store.quota import EMPTY_QUOTAS, QuotaTable
from cache_store.shadow import WatchRules
from cache_store.tier_kind import TierSizes
from cache_store.tiers import Granted
from cache_store.tokens import pack, part, unpack
from cache_store.transfers import Load, TransferId
from tests.support.block_mirror import BlockMirror, split
from tests.support.geometry import one_group
from tests.support.tier_world import Content, TierWorld

BLOCK = 2


@dataclass(eq=False)
class Request:
    """Blocks that somebody holds, and what is to become of them."""

    number: int
    ids: list[int]
    found: tuple[Block, ...]
    new: tuple[Block, ...]
    sources: tuple[LowerBlock, ...] = ()
    """Empty: the new blocks are computed."""
    to_end: set[int] = field(default_factory=set)
    """Loads that have not ended."""
    failed: set[int] = field(default_factory=set)
    is_void: bool = False
    """Its domain was dropped."""


class TierDriver:
    """One pool, its tiers, and all requests."""

    def __init__(
        self,
        domains: tuple[Domain, ...],
        size: tuple[int, int, int],
        policy: Callable[[], EvictionPolicy],
        quotas: QuotaTable,
    ) -> None:
        num_device, num_host, num_disk = size
        self.domains = domains
        self.clock = ManualClock()
        rules = WatchRules(turnovers=1, min_evidence=4)
        tiers = TierSizes(num_host, num_disk)
        self.pool = BlockPool(one_group(BLOCK), num_device, self.clock, policy=policy, watch_rules=rules, sizes=tiers)
        assert self.pool.lower is not None
        self.lower = self.pool.lower
        self.world = TierWorld(*size)
        self.mirror = BlockMirror()
        self.computing: list[Request] = []
        self.loading: list[Request] = []
        self.held: list[tuple[int, tuple[Block, ...]]] = []
        self.to_start: list[Load] = []
        """With the next step."""
        self.by_load: dict[TransferId, tuple[Request, int]] = {}
        self.names: dict[bytes, Content] = {}
        """Prefixes by digest."""
        self.seen: Counter[str] = Counter()
        """What happened, so that a test can say that it did."""
        self.pool.set_quotas(quotas)

    def change_quotas(self, quotas: QuotaTable) -> None:
        """Others, now."""
        self.pool.set_quotas(quotas)

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.clock.advance(seconds)
        self.pool.expire()

    def compute(self, number: int, ids: list[int]) -> None:
        """A request that computes what the device has not, whatever the lower tiers have."""
        found = self._match(number, ids)
        granted = self.pool.allocate(self.domains[number], len(ids) // BLOCK - len(found))
        if isinstance(granted, Granted):
            self.computing.append(Request(number, ids, found, granted.blocks))
        else:
            self.pool.release(found)

    def load(self, number: int, ids: list[int]) -> None:
        """A request that loads what the lower tiers have."""
        found = self._match(number, ids)
        sources = self._find(number, ids, found)
        self.lower.hold(sources)
        granted = self.pool.allocate(self.domains[number], len(sources))
        if not sources or not isinstance(granted, Granted):
            self.lower.let_go(sources)
            self.pool.release(found)
            return
        request = Request(number, ids, found, granted.blocks, sources, set(range(len(sources))))
        self.loading.append(request)
        for at, source in enumerate(sources):
            self.seen[f"loads from {source.tier}"] += 1
            slots = granted.blocks[at].slots
            load = Load(self.lower.new_transfer(), source.tenant, source.name, source.host_slot, slots)
            self.by_load[load.id] = (request, at)
            self.to_start.append(load)

    def give_up(self, number: int) -> None:
        """A request ends before it was computed."""
        request = self.computing.pop(number % len(self.computing))
        self._release((*request.found, *request.new), None)

    def step(self, seed: int, is_well: bool) -> None:
        """Moves, starts of loads, and what was to be computed; or the step fails somewhere."""
        moves = self.lower.drain()
        self.seen["stores"] += len(moves.stores)
        self.seen["spills"] += len(moves.spills)
        if not is_well:
            self.seen["failed steps"] += 1
            self.world.fail(moves, Random(seed))
            self.lower.end_moves(moves, ok=False)
            failed, self.world.failed = self.world.failed, []
            for result in failed:
                self.lower.finish_spill(result)
            return
        self.world.run(moves)
        to_start, self.to_start = self.to_start, []
        for load in to_start:
            self.world.start(load)
        for request in self.computing:
            for at, block in enumerate(request.new):
                end = (len(request.found) + at + 1) * BLOCK
                self.world.device[block.slots[0]] = (request.number, tuple(request.ids[:end]))
        self.lower.end_moves(moves, ok=True)
        computed, self.computing = self.computing, []
        for request in computed:
            self._commit(request, len(request.new))

    def end_spill(self, number: int, ok: bool) -> None:
        """One of those that are on their way ends."""
        identifier = [*self.world.spills][number % len(self.world.spills)]
        self.lower.finish_spill(self.world.end_spill(identifier, ok))

    def end_load(self, number: int, ok: bool) -> None:
        """One of those that are on their way ends."""
        load = [*self.world.loads.values()][number % len(self.world.loads)]
        self._end_load(load, ok)

    def finish(self, number: int, outcome: Outcome | None) -> None:
        """A request lets go of its blocks."""
        self._release(self.held.pop(number % len(self.held))[1], outcome)

    def drop(self, number: int) -> None:
        """A domain is purged."""
        self._drop(number)
        assert not self.pool.match_length(self.domains[number], pack([0] * 12), 12)
        assert not self.lower.find(self.domains[number], (), pack([0] * 12), 12)

    def books_agree(self) -> None:
        """Pool, events and contents."""
        self.pool.check_invariants()
        self.mirror.apply(self.pool.drain_events())
        self.mirror.assert_equals(self.pool.snapshot())
        self._check_contents()

    def end(self) -> None:
        """Everything ends, everything is dropped: nothing is left."""
        self.pool.set_quotas(EMPTY_QUOTAS)
        self.step(0, is_well=True)
        for identifier in [*self.world.spills]:
            self.lower.finish_spill(self.world.end_spill(identifier, ok=True))
        for load in [*self.world.loads.values()]:
            self._end_load(load, ok=True)
        for _, blocks in self.held:
            self.pool.release(blocks)
        for number in range(len(self.domains)):
            self._drop(number)
        self.step(0, is_well=True)
        self.books_agree()
        assert self.pool.num_used == 0
        assert all(tier.used_blocks == 0 for tier in self.lower.loads()), "blocks are left"
        assert not any(self.world.host), "bytes are left in the host's memory"
        assert not self.world.disk, "bytes are left on disk"
        assert not self.pool.snapshot()

    def _match(self, number: int, ids: list[int]) -> tuple[Block, ...]:
        tokens = pack(ids)
        match = self.pool.match_and_pin(self.domains[number], tokens, len(ids))
        if match.partial is not None:
            self.pool.release((match.partial.source,))
        for at, block in enumerate(match.blocks, start=1):
            assert self.world.device[block.slots[0]] == (number, tuple(ids[: at * BLOCK])), "foreign bytes are matched"
        return match.blocks

    def _find(self, number: int, ids: list[int], found: tuple[Block, ...]) -> tuple[LowerBlock, ...]:
        """All that could be loaded, and nothing else."""
        sources = self.lower.find(self.domains[number], found, pack(ids), len(ids))
        ready = {self._prefix(node) for node in self._nodes() if node.device is None and node.is_ready}
        end = len(found) + 1
        while end * BLOCK <= len(ids) and (number, tuple(ids[: end * BLOCK])) in ready:
            end += 1
        assert len(sources) == end - 1 - len(found)
        for at, source in enumerate(sources, start=len(found) + 1):
            assert self._prefix(source) == (number, tuple(ids[: at * BLOCK]))
        return sources

    def _end_load(self, load: Load, ok: bool) -> None:
        request, at = self.by_load.pop(load.id)
        content = self.world.end_load(load)
        if not request.is_void:
            end = (len(request.found) + at + 1) * BLOCK
            assert content == (request.number, tuple(request.ids[:end])), "a load read other bytes"
        if ok:
            self.lower.note_loaded(request.sources[at], 0.5)
        else:
            request.failed.add(at)
        request.to_end.discard(at)
        if request.to_end:
            return
        self.loading.remove(request)
        self.lower.let_go(request.sources)
        for number in sorted(request.failed, reverse=True):
            self.lower.lose(request.sources[number])
        self._commit(request, min(request.failed, default=len(request.new)))

    def _commit(self, request: Request, num_whole: int) -> None:
        if request.is_void:
            self._release((*request.found, *request.new), None)
            return
        parent = request.found[-1] if request.found else None
        start = len(request.found) * BLOCK
        tokens = part(pack(request.ids), start, start + num_whole * BLOCK)
        domain = self.domains[request.number]
        standing = self.pool.commit(domain, parent, request.new[:num_whole], tokens)
        for digest, end in zip(chain(domain, pack(request.ids), BLOCK), range(BLOCK, 99, BLOCK), strict=False):
            self.names[digest] = (request.number, tuple(request.ids[:end]))
        self.pool.release(request.new[num_whole:])
        self.held.append((request.number, (*request.found, *standing)))

    def _release(self, blocks: tuple[Block, ...], outcome: Outcome | None) -> None:
        self.clock.advance(1e-6)
        self.pool.release(blocks, outcome)

    def _drop(self, number: int) -> None:
        domain = self.domains[number]
        here = [node for node in self._nodes() if node.domain.digest == domain.root]
        expected = (sum(node.host is not None for node in here), sum(node.disk is not None for node in here))
        dropped = self.pool.drop((domain,), (domain.tenant,))
        assert (dropped.host_blocks, dropped.disk_blocks) == expected
        assert domain.root not in {node.domain.digest for node in self._nodes()}
        self.seen["dropped"] += sum(expected)
        for request in (*self.computing, *self.loading):
            request.is_void = request.is_void or request.number == number

    def _nodes(self) -> list[LowerBlock]:
        return [node for domain in self.lower._tree.domains.values() for node in domain.nodes]

    def _prefix(self, node: LowerBlock) -> Content:
        known = self.names[node.digest]
        assert known is not None
        assert known[1][-BLOCK:] == tuple(unpack(node.tokens))
        assert self.domains[known[0]].root == node.domain.digest
        return known

    def _check_contents(self) -> None:
        """What can be found is what it is said to be, and everything before it is somewhere too."""
        union = {self.names[digest] for packed in self.pool.snapshot().values() for digest in split(packed)}
        for prefix in union:
            assert prefix is not None
            assert len(prefix[1]) == BLOCK or (prefix[0], prefix[1][:-BLOCK]) in union, "a block without its parent"
        for node in self._nodes():
            prefix = self._prefix(node)
            assert prefix in union
            if node.host is not None and node.host.state is StayState.READY:
                assert self.world.host[node.host.slot] == prefix, "other bytes lie in the host's memory"
            if node.disk is not None and node.disk.state is StayState.READY:
                assert self.world.disk[node.name] == prefix, "other bytes lie on disk"
