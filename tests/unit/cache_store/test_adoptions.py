"""Blocks that a leaving worker gives to a pool that is full: what was used less lately makes room, and only that."""

from __future__ import annotations

import math
from random import Random

import pytest

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.domain import Domain
from cache_store.policies.choice import PolicyKind, policy_maker
from cache_store.quota import TierShare
from cache_store.tiers import Granted
from cache_store.tokens import PackedTokens, pack
from tests.support.domains import make_domain
from tests.support.geometry import one_group
from tests.support.outcomes import make_outcome
from tests.support.quotas import make_table

BLOCK = 4
ACME, GLOBEX, INITECH = make_domain("acme"), make_domain("globex"), make_domain("initech")


class Bench:
    """A pool, and prompts that are named by their first token."""

    def __init__(self, num_blocks: int, policy: PolicyKind = PolicyKind.CLASS) -> None:
        self.clock = ManualClock()
        self.pool = BlockPool(one_group(BLOCK), num_blocks, self.clock, policy=policy_maker(policy))

    def compute(self, domain: Domain, name: int, num_blocks: int, ttl_s: float = math.inf) -> None:
        """A request that has so many blocks; a second later the next may come."""
        tokens = tokens_of(name, num_blocks)
        match = self.pool.match_and_pin(domain, tokens, len(tokens) // 4)
        granted = self.pool.allocate(domain, num_blocks - len(match.blocks))
        assert isinstance(granted, Granted)
        parent = match.blocks[-1] if match.blocks else None
        new = self.pool.commit(domain, parent, granted.blocks, tokens_of(name, num_blocks, len(match.blocks)))
        self.pool.release((*match.blocks, *new), make_outcome(prompt_tokens=num_blocks * BLOCK, ttl_s=ttl_s))
        self.clock.advance(1.0)
        self.pool.check_invariants()

    def adopt(self, domain: Domain, name: int, num_blocks: int, unused_s: float) -> int:
        """What is given; how many blocks of it are new."""
        used_s = self.clock.monotonic_s() - unused_s
        tokens = tokens_of(name, num_blocks)
        match = self.pool.match_and_pin(domain, tokens, len(tokens) // 4)
        held = match.blocks
        num_wanted = min(num_blocks - len(held), self.pool.num_available(domain))
        num_room = self.pool.adoptions.num_room(domain, num_wanted, used_s)
        num_new = self.pool.adoptions.make_room(domain, num_wanted, used_s)
        assert num_room >= num_new, "what had room was not asked for"
        num_evicted = self.pool.pressure.evicted_blocks
        granted = self.pool.allocate(domain, num_new)
        assert isinstance(granted, Granted)
        assert self.pool.pressure.evicted_blocks == num_evicted, "something went that was not asked for"
        given = tokens_of(name, len(held) + num_new, len(held))
        standing = self.pool.commit(domain, held[-1] if held else None, granted.blocks, given)
        self.pool.adoptions.date((*held, *standing), used_s)
        self.pool.release((*held, *standing))
        self.pool.check_invariants()
        return num_new

    def num_here(self, domain: Domain, name: int, num_blocks: int) -> int:
        tokens = tokens_of(name, num_blocks)
        return self.pool.match_length(domain, tokens, len(tokens) // 4) // BLOCK

    def ages(self, domain: Domain) -> list[float]:
        """Of all blocks of a domain that nobody holds, oldest first."""
        now_s = self.clock.monotonic_s()
        blocks = [each for each in self.pool.blocks if each.parent is not None and each.root == domain.root]
        return sorted((now_s - use.time_s for each in blocks if (use := each.use) is not None), reverse=True)


def tokens_of(name: int, num_blocks: int, first_block: int = 0) -> PackedTokens:
    return pack(1_000 * name + at for at in range(first_block * BLOCK, num_blocks * BLOCK))


@pytest.mark.parametrize("policy", list(PolicyKind))
def test_what_the_tenant_used_less_lately_makes_room(policy: PolicyKind) -> None:
    bench = Bench(20, policy)
    for name in range(4):
        bench.compute(ACME, name, 5)
    assert bench.adopt(ACME, 9, 8, unused_s=2.5) == 8
    assert [bench.num_here(ACME, name, 5) for name in range(4)] == [0, 2, 5, 5]
    assert bench.num_here(ACME, 9, 8) == 8


@pytest.mark.parametrize("policy", list(PolicyKind))
def test_what_the_tenant_used_later_stays(policy: PolicyKind) -> None:
    bench = Bench(20, policy)
    for name in range(4):
        bench.compute(ACME, name, 5)
    assert bench.adopt(ACME, 9, 20, unused_s=2.5) == 10, "leading ones, as many as there were older ones"
    assert [bench.num_here(ACME, name, 5) for name in range(4)] == [0, 0, 5, 5]
    assert bench.adopt(ACME, 8, 5, unused_s=100.0) == 0
    assert bench.adopt(ACME, 8, 5, unused_s=math.inf) == 0, "not known when"


def test_what_is_given_is_as_old_as_it_was() -> None:
    """However late it comes: those used last are given first."""
    bench = Bench(20)
    for name in range(4):
        bench.compute(ACME, name, 5)
    assert bench.adopt(ACME, 8, 5, unused_s=0.5) == 5
    assert bench.adopt(ACME, 9, 5, unused_s=2.5) == 5
    assert bench.adopt(ACME, 7, 5, unused_s=2.2) == 5
    assert [bench.num_here(ACME, name, 5) for name in (8, 9, 7)] == [5, 0, 5]


def test_what_was_here_already_counts_as_used_there() -> None:
    bench = Bench(20)
    for name in range(4):
        bench.compute(ACME, name, 5)
    assert bench.adopt(ACME, 0, 5, unused_s=0.5) == 0
    assert bench.adopt(ACME, 9, 5, unused_s=2.5) == 5
    assert [bench.num_here(ACME, name, 5) for name in (0, 1, 9)] == [5, 0, 5]


def test_a_time_to_live_here_is_left_as_it_is() -> None:
    bench = Bench(20)
    bench.compute(ACME, 0, 5, ttl_s=10.0)
    assert bench.adopt(ACME, 0, 5, unused_s=0.5) == 0
    bench.clock.advance(10.0)
    assert bench.num_here(ACME, 0, 5) == 0


def test_what_somebody_holds_makes_no_room() -> None:
    bench = Bench(20)
    bench.compute(ACME, 0, 10)
    bench.compute(ACME, 1, 10)
    held = bench.pool.match_and_pin(ACME, tokens_of(0, 6), 24)
    assert bench.adopt(ACME, 9, 20, unused_s=0.5) == 14
    bench.pool.release(held.pinned)
    assert bench.num_here(ACME, 0, 10) == 6


def test_another_tenants_within_its_guarantee_stay() -> None:
    """However old they are; what it has beyond goes where the tenant's own next block would take it, if older."""
    bench = Bench(20)
    bench.pool.set_quotas(make_table(globex=TierShare(0.5)))
    bench.compute(GLOBEX, 0, 6)
    bench.compute(GLOBEX, 1, 6)
    bench.compute(ACME, 2, 8)
    assert bench.adopt(ACME, 9, 6, unused_s=0.5) == 6
    assert len(bench.ages(GLOBEX)) == 12, "the tenant has more beyond its guarantee, and pays itself"
    assert bench.num_here(ACME, 2, 8) == 2
    bench.clock.advance(100.0)
    assert bench.adopt(INITECH, 9, 8, unused_s=0.5) == 8
    assert len(bench.ages(GLOBEX)) >= 10


def test_what_another_tenant_used_later_stays() -> None:
    bench = Bench(20)
    bench.compute(GLOBEX, 0, 10)
    bench.clock.advance(100.0)
    bench.compute(GLOBEX, 1, 10)
    assert bench.adopt(ACME, 9, 20, unused_s=50.0) == 10
    assert [bench.num_here(GLOBEX, name, 10) for name in (0, 1)] == [0, 10]


def test_within_its_guarantee_it_takes_back_what_is_lent() -> None:
    bench = Bench(20)
    bench.compute(GLOBEX, 0, 20)
    bench.pool.set_quotas(make_table(acme=TierShare(0.5)))
    assert bench.adopt(ACME, 9, 20, unused_s=1_000.0) == 10
    assert len(bench.ages(GLOBEX)) == 10


def test_its_maximum_holds() -> None:
    bench = Bench(20)
    bench.pool.set_quotas(make_table(acme=TierShare(0.0, 0.5)))
    bench.compute(ACME, 0, 4)
    bench.compute(ACME, 1, 6)
    assert bench.adopt(ACME, 9, 10, unused_s=1.5) == 4
    assert len(bench.ages(ACME)) == 10


@pytest.mark.parametrize("seed", range(40))
def test_nothing_goes_that_was_used_later(seed: int) -> None:
    random = Random(seed)
    bench = Bench(40, random.choice(list(PolicyKind)))
    tenants = (ACME, GLOBEX, INITECH)
    shares = [TierShare(0.0), TierShare(0.25), TierShare(0.25, 0.5), TierShare(0.25, 0.25)]
    bench.pool.set_quotas(make_table(acme=random.choice(shares), globex=random.choice(shares)))
    for _ in range(60):
        domain, name, num_blocks = random.choice(tenants), random.randrange(12), random.randrange(1, 9)
        if random.random() < 0.5:
            bench.compute(domain, name, num_blocks)
            continue
        before = {each: bench.ages(each) for each in tenants}
        unused_s = random.choice([0.0, 1.5, 5.5, 20.5, math.inf])
        guarantees = bench.pool.guarantees()
        num_due = guarantees.get(domain.tenant, 0) - len(before[domain])
        bench.adopt(domain, name, num_blocks, unused_s)
        for each in tenants:
            after, guarantee = bench.ages(each), guarantees.get(each.tenant, 0)
            if each is not domain:
                assert len(after) >= min(len(before[each]), guarantee), "a guaranteed block went"
            if num_due <= 0:
                num_younger = sum(age <= unused_s for age in before[each])
                assert sum(age <= unused_s for age in after) >= num_younger, "a block went that was used later"
