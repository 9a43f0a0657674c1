"""What other tenants do to a strict tenant's blocks below the device: nothing, whatever they do.

Each case is drawn from a seed, with hundreds of requests on tiers that are much too small. What is moved between tiers
ends before the next request begins, so that time is the same for all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.domain import Domain, TenantId
from cache_store.lower_tiers import LowerTiers
from cache_store.policies.class_aware import ClassAware
from cache_store.policies.lru import Lru
from cache_store.policy import EvictionPolicy, Outcome
from cache_store.quota import QuotaTable, TenantQuota, TierShare
from cache_store.shadow import WatchRules
from cache_store.tier_kind import TierKind, TierSizes
from cache_store.tiers import Granted
from cache_store.tokens import pack, part
from cache_store.transfers import TransferResult
from tests.support.domains import make_domain
from tests.support.geometry import one_group
from tests.support.odd_policy import OddPolicy
from tests.support.outcomes import make_outcome

pytestmark = pytest.mark.timeout(1_800)  # the nightly profile takes minutes

BLOCK = 2
OWN = (make_domain("own"), make_domain("own", partition="p"))
OTHERS = tuple(make_domain(name) for name in ("ann", "bob", "cyd"))
many = settings(max_examples=10_000 if settings.get_current_profile_name() == "nightly" else 150)
EAGER = WatchRules(turnovers=1, min_evidence=8)


@dataclass(frozen=True, slots=True)
class Step:
    """A request from its beginning to its end, or other quotas of the others."""

    domain: Domain
    ids: tuple[int, ...]
    outcome: Outcome
    wait_s: float
    quotas: MappingProxyType[TenantId, TenantQuota] | None


@dataclass(frozen=True, slots=True)
class Case:
    """Tiers, the strict tenant's part of them, and what everybody does in order."""

    num_blocks: int
    sizes: TierSizes
    own: TenantQuota
    steps: list[Step]


def make_case(random: Random) -> Case:
    eighths = {tier: random.randint(1, 6) for tier in TierKind}
    own = TenantQuota(MappingProxyType({tier: TierShare(each / 8, each / 8) for tier, each in eighths.items()}))
    steps = [_step(random, eighths) for _ in range(random.choice([30, 100]))]
    sizes = TierSizes(random.choice([8, 16, 24]), random.choice([0, 8, 16]))
    return Case(random.choice([8, 16]), sizes, own, steps)


def _step(random: Random, eighths: dict[TierKind, int]) -> Step:
    domain = random.choice(OWN if random.random() < 0.5 else OTHERS)
    quotas = _quotas(random, eighths) if random.random() < 0.05 else None
    outcome = make_outcome(
        random.randint(1, 20),
        random.randint(0, 9),
        session_end=random.random() < 0.1,
        ttl_s=random.choice([math.inf] * 6 + [3.0, 10.0]),
    )
    ids = tuple(random.choices((0, 1), (3, 1), k=random.randint(2, 14)))
    return Step(domain, ids, outcome, random.choice([0.0, 0.5, 2.0]), quotas)


def _quotas(random: Random, eighths: dict[TierKind, int]) -> MappingProxyType[TenantId, TenantQuota]:
    left = {tier: 8 - each for tier, each in eighths.items()}
    quotas = {}
    for other in OTHERS:
        shares = {}
        for tier in TierKind:
            minimum = random.randint(0, left[tier])
            left[tier] -= minimum
            maximum = minimum if minimum and random.random() < 0.3 else max(minimum, random.randint(1, 8))
            shares[tier] = TierShare(minimum / 8, maximum / 8)
        quotas[other.tenant] = TenantQuota(MappingProxyType(shares), random.choice([0.5, 1.0, 2.0]))
    return MappingProxyType(quotas)


def run(case: Case, policy: Callable[[], EvictionPolicy], who: tuple[Domain, ...]) -> list[object]:
    """What the strict tenant sees: hits by tier, and what it has, after each of its requests."""
    clock = ManualClock()
    pool = BlockPool(one_group(BLOCK), case.num_blocks, clock, policy=policy, watch_rules=EAGER, sizes=case.sizes)
    lower = pool.lower
    assert lower is not None
    quotas = {OWN[0].tenant: case.own}
    pool.set_quotas(QuotaTable(1, MappingProxyType(quotas)))
    trace: list[object] = []
    for step in case.steps:
        clock.advance(step.wait_s)
        if step.quotas is not None and len(who) > len(OWN):
            pool.set_quotas(QuotaTable(2, MappingProxyType({**quotas, **step.quotas})))
        if step.domain in who:
            hits = request(pool, lower, step)
            move(lower)
            if step.domain in OWN:
                trace.append((hits, pool.use_of(step.domain).used_blocks, lower.used_by(step.domain.tenant)))
    pool.check_invariants()
    return trace


def request(pool: BlockPool, lower: LowerTiers, step: Step) -> tuple[int, list[TierKind], int]:
    """Blocks that the device had, tiers of those that were loaded, and blocks that there was room for."""
    domain, tokens = step.domain, pack(step.ids)
    pool.expire()
    match = pool.match_and_pin(domain, tokens, len(step.ids))
    if match.partial is not None:
        pool.release((match.partial.source,))
    pool.note_reuse(domain, match)
    sources = lower.find(domain, match.blocks, tokens, len(step.ids))
    lower.hold(sources)
    num_new = min(pool.num_available(domain), len(step.ids) // BLOCK - len(match.blocks))
    granted = pool.allocate(domain, num_new)
    assert isinstance(granted, Granted)
    tiers = [source.tier for source in sources[:num_new]]
    lower.let_go(sources)
    parent = match.blocks[-1] if match.blocks else None
    start = len(match.blocks) * BLOCK
    standing = pool.commit(domain, parent, granted.blocks, part(tokens, start, start + num_new * BLOCK))
    pool.release((*match.blocks, *standing), step.outcome)
    return len(match.blocks), tiers, num_new


def move(lower: LowerTiers) -> None:
    """All that is to be moved, at once."""
    moves = lower.drain()
    lower.end_moves(moves, ok=True)
    for spill in moves.spills:
        lower.finish_spill(TransferResult(spill.id, ok=True, seconds=0.0))


@pytest.mark.parametrize("policy", [Lru, OddPolicy, ClassAware])
@many
@given(seed=st.integers(0, 2**64 - 1))
def test_a_strict_tenant_hits_the_same_in_every_tier_whatever_others_do(
    policy: Callable[[], EvictionPolicy], seed: int
) -> None:
    case = make_case(Random(seed))
    assert run(case, policy, (*OWN, *OTHERS)) == run(case, policy, OWN)


def test_the_cases_hit_in_every_tier() -> None:
    """Nothing above says anything where nothing is found."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        for (num_device, tiers, _), _, _ in run(make_case(Random(seed)), Lru, (*OWN, *OTHERS)):  # type: ignore[misc]  # a trace is compared, not read
            seen["device"] += num_device
            seen.update(str(tier) for tier in tiers)
    assert min(seen[str(tier)] for tier in TierKind) > 20, seen
