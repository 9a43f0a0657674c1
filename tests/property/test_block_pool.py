"""Block pool and prefix tree under several tenants with quotas, against a naive model that stores whole prefixes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.digest import Hasher, chain, xxh3_128
from cache_store.domain import TenantId
from cache_store.policies.class_aware import ClassAware
from cache_store.policies.lru import Lru
from cache_store.policy import EvictionPolicy, Outcome
from cache_store.prefix_tree import Block
from cache_store.quota import QuotaTable
from cache_store.shadow import WatchRules
from cache_store.tiers import Granted, Short
from cache_store.tokens import pack, part, unpack
from tests.support.block_mirror import BlockMirror, split
from tests.support.domains import make_domain
from tests.support.geometry import one_group, two_groups
from tests.support.naive_pool import Dropped, NaivePool, Prefix
from tests.support.odd_policy import OddPolicy
from tests.support.outcomes import make_outcome
from tests.support.quotas import quota_tables

pytestmark = pytest.mark.timeout(1_800)  # the nightly profile takes minutes

BLOCK = 2
TENANTS = ("acme", "globex", "initech", "umbrella")
DOMAINS = (
    *(make_domain(tenant) for tenant in TENANTS),
    make_domain("acme", epoch="e2"),
    make_domain("acme", partition="p"),
    make_domain("globex", partition="p"),
)


def _four_bits(data: bytes) -> bytes:
    return bytes([xxh3_128(data)[0] & 15]) * 16


class Held(NamedTuple):
    """Blocks that somebody holds, and what the model thinks they are (None: not in the tree)."""

    number: int
    blocks: tuple[Block, ...]
    prefixes: tuple[Prefix | Dropped | None, ...]


outcomes = st.one_of(
    st.none(),
    st.builds(
        make_outcome,
        prompt_tokens=st.integers(0, 40),
        output_tokens=st.integers(0, 40),
        stop=st.sampled_from(["length", "stop:1", "stop:2", "interrupted"]),
        session=st.sampled_from([b"", b"a", b"b"]),
        session_end=st.booleans(),
        ttl_s=st.sampled_from([math.inf, math.inf, 1.0, 5.0]),
    ),
)


numbers = st.integers(0, len(DOMAINS) - 1)
"""Of a domain."""
prompts = st.integers(1, 11).flatmap(lambda size: st.lists(st.integers(0, 1), min_size=size, max_size=size))


class PoolMachine(RuleBasedStateMachine):
    """Requests that match, write, commit, and end in any order, in a pool that is too small."""

    @initialize(
        capacity=st.sampled_from([1, 2, 3, 4, 5, 6, 8, 8, 12, 16]),
        groups=st.integers(1, 2),
        hasher=st.sampled_from([xxh3_128, xxh3_128, _four_bits]),
        policy=st.sampled_from([Lru, Lru, OddPolicy, ClassAware]),
        quotas=quota_tables(TENANTS),
    )
    def start(
        self, capacity: int, groups: int, hasher: Hasher, policy: Callable[[], EvictionPolicy], quotas: QuotaTable
    ) -> None:
        is_lru = policy is Lru
        hasher = hasher if is_lru else xxh3_128  # another order is known by what it left only
        geometry = one_group(BLOCK) if groups == 1 else two_groups(BLOCK)
        self.clock = ManualClock()
        self.pool = BlockPool(geometry, capacity, self.clock, hasher, policy, WatchRules(turnovers=1, min_evidence=4))
        self.model = NaivePool(capacity, DOMAINS, BLOCK)
        self.is_lru, self.exact_digests = is_lru, hasher is xxh3_128
        self.mirror = BlockMirror()
        self.held: list[Held] = []
        self.num_drops = 0
        self.bytes_of: dict[tuple[int, int], tuple[int, int]] = {}
        """By group and slot: whose bytes, as of which drop."""
        self.drops: Counter[int] = Counter()
        """Of each domain."""
        self.change_quotas(quotas)

    @rule(quotas=quota_tables(TENANTS))
    def change_quotas(self, quotas: QuotaTable) -> None:
        self.pool.set_quotas(quotas)
        self.model.set_quotas(quotas)
        self._settle()

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(number=numbers, ids=prompts, outcome=outcomes)
    def whole_request(self, number: int, ids: list[int], outcome: Outcome | None) -> None:
        held = self._begin(number, ids, len(ids))
        if held is not None:
            self._release(held, outcome)

    @rule(number=numbers, ids=prompts, commit_blocks=st.sampled_from([0, 1, 2, 6]))
    def begin_request(self, number: int, ids: list[int], commit_blocks: int) -> None:
        held = self._begin(number, ids, commit_blocks)
        if held is not None:
            self.held.append(held)

    def _begin(self, number: int, ids: list[int], commit_blocks: int) -> Held | None:
        domain = DOMAINS[number]
        blocks, prefixes = self._match(number, ids)
        wanted = -(-len(ids) // BLOCK) - len(blocks)
        available = self.model.available(domain.tenant)
        assert self.pool.num_available(domain) == available
        granted = self.pool.allocate(domain, wanted)
        if wanted > available:
            assert granted == Short(available)
            self._release(Held(number, blocks, prefixes), None)
            return None
        assert isinstance(granted, Granted)
        assert len(granted.blocks) == wanted
        self._write(number, granted)
        self._settle(domain.tenant, wanted)
        self.model.grant(domain.tenant, wanted)
        return self._commit(Held(number, blocks, prefixes), ids, granted.blocks, commit_blocks)

    def _write(self, number: int, granted: Granted) -> None:
        for slot in granted.scrubs:
            del self.bytes_of[slot]  # nothing is scrubbed that was not written
        for slot in (slot for block in granted.blocks for slot in enumerate(block.slots)):
            name = (number, self.drops[number])
            assert self.bytes_of.get(slot, name) == name, "bytes of another domain, or of one that was dropped"
            self.bytes_of[slot] = name

    @rule(number=numbers, ids=prompts)
    def pin(self, number: int, ids: list[int]) -> None:
        self.held.append(Held(number, *self._match(number, ids)))

    @rule(number=numbers)
    def drop(self, number: int) -> None:
        self.num_drops += 1
        self.drops[number] += 1
        domain = DOMAINS[number]
        num_resident, num_held = self.model.drop(number, self.num_drops)
        dropped = self.pool.drop((domain,), (domain.tenant,))
        blocks = {block.uid for held in self.held if held.number == number for block in held.blocks}
        assert dropped.held_blocks == len(blocks)
        assert dropped.device_blocks == num_resident - num_held + len(blocks)
        self.held = [self._without(held) if held.number == number else held for held in self.held]
        self._settle()

    def _without(self, held: Held) -> Held:
        prefixes = [Dropped(self.num_drops, each) if isinstance(each, tuple) else each for each in held.prefixes]
        return Held(held.number, held.blocks, tuple(prefixes))

    @rule(num_most=st.sampled_from([1, 3, 100]))
    def scrub(self, num_most: int) -> None:
        held = {slot for held in self.held for block in held.blocks for slot in enumerate(block.slots)}
        scrubs = self.pool.scrubs.drain(num_most)
        assert len(scrubs) <= num_most * 2
        for slot in scrubs:
            assert slot not in held, "a slot is scrubbed that is held"
            del self.bytes_of[slot]  # nothing is scrubbed twice

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 20))
    def share(self, which: int) -> None:
        held = self.held[which % len(self.held)]
        shared = [prefix for prefix in held.prefixes if prefix]
        self.pool.pin(held.blocks[: len(shared)])
        self.model.hold(shared)
        self.held.append(Held(held.number, held.blocks[: len(shared)], tuple(shared)))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 20), outcome=outcomes)
    def finish(self, which: int, outcome: Outcome | None) -> None:
        self._release(self.held.pop(which % len(self.held)), outcome)

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_invariants()
        use = {each.tenant: each for each in self.pool.usage()}
        for tenant in self.model.tenants:
            held, used = self.model.held(tenant), self.model.used(tenant)
            assert held == 0 or tenant in use
            if tenant in use:
                assert (use[tenant].held_blocks, use[tenant].used_blocks) == (held, used)
                assert used <= max(held, self.model.bounds[tenant].maximum)
                assert use[tenant].evicted_blocks == self.model.lost[tenant]
        assert self.pool.num_used == sum(map(self.model.used, self.model.tenants))
        assert self.pool.num_held == sum(map(self.model.held, self.model.tenants))
        self._follow_events()
        if not len(self.pool.scrubs):
            held = {slot for held in self.held for block in held.blocks for slot in enumerate(block.slots)}
            for slot, (number, drop) in self.bytes_of.items():
                assert drop == self.drops[number] or slot in held, "what was dropped is left in a slot"
        if self.exact_digests:
            resident: dict[bytes, set[bytes]] = {}
            for prefix in self.model.uses:
                resident.setdefault(DOMAINS[prefix[0]].tag, set()).add(_digest(prefix))
            assert resident == {tag: set(split(packed)) for tag, packed in self.pool.snapshot().items()}

    def _match(self, number: int, ids: list[int]) -> tuple[tuple[Block, ...], tuple[Prefix, ...]]:
        domain, tokens, limit = DOMAINS[number], pack(ids), len(ids) - 1
        self.model.expire(self.clock.monotonic_s())
        self.model.keep_free()
        length = self.model.match_length(number, ids, limit)
        assert self.pool.match_length(domain, tokens, limit) == length
        match = self.pool.match_and_pin(domain, tokens, limit)
        prefixes = self.model.matched(number, ids, limit)
        assert len(match.blocks) == len(prefixes)
        for block, prefix in zip(match.blocks, prefixes, strict=True):
            assert (block.root, tuple(unpack(block.tokens))) == (domain.root, prefix[1][-BLOCK:])
        if match.partial is not None:
            source, run = match.partial.source, match.partial.num_tokens
            assert len(prefixes) * BLOCK + run == length
            assert unpack(source.tokens)[:run] == ids[len(prefixes) * BLOCK : length]
            assert source.root == domain.root
        self.pool.note_reuse(domain, match)
        if match.partial is not None:
            self.pool.release((match.partial.source,))
        self.model.hold(prefixes)
        return match.blocks, tuple(prefixes)

    def _commit(self, held: Held, ids: list[int], new: tuple[Block, ...], limit: int) -> Held:
        number, blocks, prefixes = held.number, list(held.blocks), list(held.prefixes)
        num_full = min(limit, len(ids) // BLOCK - len(blocks), len(new))
        start, stop = len(blocks) * BLOCK, (len(blocks) + num_full) * BLOCK
        ends = range(start + BLOCK, stop + 1, BLOCK)
        expected = [(number, tuple(ids[:end])) for end in ends]
        parent = blocks[-1] if blocks else None
        blocks += self.pool.commit(DOMAINS[number], parent, new[:num_full], part(pack(ids), start, stop))
        for block, prefix in zip(new, expected, strict=False):
            assert self.model.commit(prefix) == (block in blocks)
        self._settle()
        loose = new[num_full:]
        return Held(number, (*blocks, *loose), (*prefixes, *expected, *([None] * len(loose))))

    def _release(self, held: Held, outcome: Outcome | None) -> None:
        self.clock.advance(1e-6)  # no two uses have the same age
        self.pool.release(held.blocks, outcome)
        tenant = DOMAINS[held.number].tenant
        self.model.release([*held.prefixes], tenant, outcome, self.clock.monotonic_s())
        self._settle()

    def _settle(self, asking: str | None = None, num_blocks: int = 0) -> None:
        """Takes what the last call evicted from the model, where the rules allow it."""
        model = self.model
        accounts = [self.pool._ledger.of(TenantId(tenant)) for tenant in model.tenants]
        model.lending = {account.tenant for account in accounts if account.lends_guarantee}
        model.guarded = {account.tenant for account in accounts if account.watch and account.watch.prefers_lru}
        told = {each.tenant: each.evicted_blocks for each in self.pool.usage()}
        paid = Counter({tenant: told.get(tenant, 0) - model.lost[tenant] for tenant in model.tenants})
        beyond: Counter[str] = Counter()
        if asking is None:
            for tenant in model.tenants:
                cached, used = len(model.cached(tenant)), model.used(tenant)
                beyond[tenant] = max(0, min(cached, used - model.bounds[tenant].maximum))
                assert paid[tenant] >= beyond[tenant], f"{tenant} keeps more than it may have"
        self._lose(beyond)
        paid -= beyond
        assert sum(paid.values()) == model.num_due(asking, num_blocks)
        model.check_payers(paid, asking, num_blocks)
        self._lose(paid)
        if asking is None:
            model.keep_free()
        self._follow_events()

    def _lose(self, paid: Counter[str]) -> None:
        if self.is_lru:
            for tenant, count in paid.items():
                self.model.lose_oldest(tenant, count)
            return
        left = {digest for packed in self.pool.snapshot().values() for digest in split(packed)}
        for tenant, count in paid.items():
            gone = {each for each in self.model.cached(tenant) if _digest(each) not in left}
            assert len(gone) >= count
            self.model.lose(tenant, gone if len(gone) == count else set(sorted(gone, key=lambda p: -len(p[1]))[:count]))

    def _follow_events(self) -> None:
        events = self.pool.drain_events()
        if self.exact_digests:
            self.mirror.apply(events)
            self.mirror.assert_equals(self.pool.snapshot())


def _digest(prefix: Prefix) -> bytes:
    return chain(DOMAINS[prefix[0]], pack(prefix[1]), BLOCK)[-1]


PoolMachine.TestCase.settings = settings(deadline=None, stateful_step_count=40)
TestPool = PoolMachine.TestCase
