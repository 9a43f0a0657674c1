"""What other tenants do to a tenant's blocks: nothing where it is strict, nothing below its guarantee where it is not.

Each case is drawn from a seed, with hundreds of operations on a pool that is much too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.domain import Domain, DomainTag, TenantId
from cache_store.policies.class_aware import ClassAware
from cache_store.policies.lru import Lru
from cache_store.policy import EvictionPolicy
from cache_store.prefix_tree import Block
from cache_store.quota import QuotaTable, TenantQuota, TierShare
from cache_store.shadow import WatchRules
from cache_store.tiers import Granted
from cache_store.tokens import pack, part
from tests.support.block_mirror import split
from tests.support.domains import make_domain
from tests.support.geometry import one_group
from tests.support.odd_policy import OddPolicy
from tests.support.outcomes import make_outcome
from tests.support.quotas import make_quota

pytestmark = pytest.mark.timeout(1_800)  # the nightly profile takes minutes

BLOCK = 2
OWN = (make_domain("own"), make_domain("own", partition="p"))
OTHERS = tuple(make_domain(name) for name in ("ann", "bob", "cyd"))
many = settings(max_examples=10_000 if settings.get_current_profile_name() == "nightly" else 150)
EAGER = WatchRules(turnovers=1, min_evidence=8)
NEVER = WatchRules(useless_density=0.0)
seeds = st.integers(0, 2**64 - 1)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that somebody does."""

    what: str
    domain: Domain
    ids: tuple[int, ...] = ()
    num_commits: int = 0
    which: int = 0
    session_end: bool = False
    ttl_s: float = math.inf
    wait_s: float = 0.0
    shares: MappingProxyType[TenantId, TenantQuota] = field(default_factory=lambda: MappingProxyType({}))


class User:
    """One tenant at a pool, and all that it gets to see there."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._held: list[tuple[Block, ...]] = []
        self.trace: list[object] = []

    def do(self, step: Step) -> None:
        """Notes what the pool answers. What is overdue goes first, whoever looked at it before."""
        self._pool.expire()
        match step.what:
            case "begin":
                self._begin(step)
            case "pin":
                match = self._pool.match_and_pin(step.domain, pack(step.ids), len(step.ids))
                self.trace.append(len(match.blocks))
                self._held.append(match.pinned)
            case "end":
                outcome = make_outcome(len(step.ids), step.which, session_end=step.session_end, ttl_s=step.ttl_s)
                self._release(step, outcome)
            case "give up":
                self._release(step, None)
        use = self._pool.use_of(step.domain)
        room = (self._pool.max_blocks(step.domain), self._pool.num_available(step.domain), use.lent_blocks)
        self.trace.append((room, use.held_blocks, use.used_blocks, use.evicted_blocks))

    def _begin(self, step: Step) -> None:
        tokens = pack(step.ids)
        self.trace.append(self._pool.match_length(step.domain, tokens, len(step.ids)))
        match = self._pool.match_and_pin(step.domain, tokens, len(step.ids))
        if match.partial is not None:
            self._pool.release((match.partial.source,))
        granted = self._pool.allocate(step.domain, len(step.ids) // BLOCK - len(match.blocks))
        self.trace.append((len(match.blocks), len(granted.blocks) if isinstance(granted, Granted) else granted))
        if not isinstance(granted, Granted):
            self._pool.release(match.blocks)
            return
        self._pool.note_reuse(step.domain, match)
        parent = match.blocks[-1] if match.blocks else None
        new = granted.blocks[: step.num_commits]
        fresh = part(tokens, len(match.blocks) * BLOCK, (len(match.blocks) + len(new)) * BLOCK)
        stored = self._pool.commit(step.domain, parent, new, fresh)
        self._held.append((*match.blocks, *stored, *granted.blocks[len(new) :]))

    def _release(self, step: Step, outcome) -> None:
        if self._held:
            blocks = self._held.pop(step.which % len(self._held))
            self._pool.release(blocks, outcome)


def _strict_case(random: Random) -> tuple[int, TierShare, list[Step]]:
    """Capacity, the strict share, and what everybody does in order."""
    share = TierShare(*[random.randint(1, 6) / 8] * 2)
    steps = [
        _step(random, random.choice(OWN if random.random() < 0.4 else OTHERS), 1 - share.minimum)
        for _ in range(random.choice([20, 100, 200]))
    ]
    return random.choice([8, 16, 24]), share, steps


def _step(random: Random, domain: Domain, free_share: float) -> Step:
    what = random.choice(["begin"] * 4 + ["end"] * 4 + ["pin", "give up", "wait", "quotas"])
    size = random.randint(1, 12)
    shares: dict[TenantId, TenantQuota] = {}
    for other in OTHERS:
        minimum = random.randint(0, int(free_share * 8)) / 8
        free_share -= minimum
        maximum = minimum if minimum and random.random() < 0.3 else max(minimum, random.randint(1, 8) / 8)
        shares[other.tenant] = make_quota(TierShare(minimum, maximum), random.choice([0.5, 1.0, 2.0]))
    return Step(
        what,
        domain,
        ids=tuple(random.choices((0, 1), k=size)),
        num_commits=random.randint(0, 8),
        which=random.randint(0, 9),
        session_end=random.random() < 0.2,
        ttl_s=random.choice([math.inf, math.inf, 3.0, 10.0]),
        wait_s=random.choice([0.0, 0.5, 2.0]),
        shares=MappingProxyType(shares),
    )


def _run(
    capacity: int, own: TierShare, steps: list[Step], policy: Callable[[], EvictionPolicy], with_others: bool
) -> tuple[list[object], list[tuple[str, bytes]]]:
    """What the strict tenant sees, and what an index would hear of its blocks."""
    clock = ManualClock()
    pool = BlockPool(one_group(BLOCK), capacity, clock, policy=policy, watch_rules=EAGER)
    quotas = {OWN[0].tenant: make_quota(own)}
    pool.set_quotas(QuotaTable(1, MappingProxyType(quotas)))
    users = {domain.tenant: User(pool) for domain in (*OWN, *OTHERS)}
    tags = {domain.tag for domain in OWN}
    heard: list[tuple[str, bytes]] = []
    for step in steps:
        clock.advance(step.wait_s)
        if step.what == "quotas" and with_others:
            pool.set_quotas(QuotaTable(2, MappingProxyType({**quotas, **step.shares})))
        elif step.what != "quotas" and (with_others or step.domain in OWN):
            users[step.domain.tenant].do(step)
        heard += _heard(pool, tags)
    pool.check_invariants()
    pool.expire()
    heard += _heard(pool, tags)
    return users[OWN[0].tenant].trace, heard


def _heard(pool: BlockPool, tags: set[DomainTag]) -> list[tuple[str, bytes]]:
    events = [event for event in pool.drain_events() if event.domain_tag in tags]
    return [(event.change, digest) for event in events for digest in split(event.digests)]


@pytest.mark.parametrize("policy", [Lru, OddPolicy, ClassAware])
@many
@given(seed=seeds)
def test_a_strict_tenants_trace_is_the_same_whatever_others_do(policy: Callable[[], EvictionPolicy], seed: int) -> None:
    capacity, share, steps = _strict_case(Random(seed))
    alone = _run(capacity, share, steps, policy, with_others=False)
    assert _run(capacity, share, steps, policy, with_others=True) == alone


def _whole(pool: BlockPool, domain: Domain, ids: tuple[int, ...], ttl_s: float) -> int:
    """A request from its beginning to its end; tokens that it did not have to compute."""
    user = User(pool)
    user.do(Step("begin", domain, ids, num_commits=len(ids)))
    user.do(Step("end", domain, ids, ttl_s=ttl_s))
    length = user.trace[0]
    assert isinstance(length, int)
    return length


@many
@given(seed=seeds)
def test_a_guaranteed_tenant_hits_at_least_as_often_as_alone_with_its_guarantee(seed: int) -> None:
    random = Random(seed)
    capacity, eighths = random.choice([16, 24, 32]), random.randint(1, 6)
    minimum = capacity * eighths // 8
    clock = ManualClock()
    alone, shared = (BlockPool(one_group(BLOCK), size, clock, watch_rules=NEVER) for size in (minimum, capacity))
    share = TierShare(eighths / 8, random.choice([eighths, 8]) / 8)
    own = {OWN[0].tenant: make_quota(share, random.choice([0.1, 1.0, 5.0]))}
    ttl_s = random.choice([math.inf, 3.0, 10.0])  # one for all: a longer one below keeps an overdue block resident
    shared.set_quotas(QuotaTable(1, MappingProxyType(own)))
    for _ in range(random.choice([30, 150])):
        step = _step(random, random.choice(OWN if random.random() < 0.4 else OTHERS), 1 - eighths / 8)
        clock.advance(step.wait_s)
        if step.what == "quotas":
            shared.set_quotas(QuotaTable(2, MappingProxyType({**own, **step.shares})))
        elif step.domain in OWN:
            ids = step.ids[: minimum * BLOCK]
            hit = _whole(alone, step.domain, ids, ttl_s)
            assert _whole(shared, step.domain, ids, ttl_s) >= hit
        else:
            _whole(shared, step.domain, step.ids, step.ttl_s)
    shared.check_invariants()
