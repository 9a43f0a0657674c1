"""What others do to the windows that a tenant has cached: nothing where it is strict, nothing within its guarantee.

Each case runs the same requests of one tenant twice: alone, and among requests and pins of others that want far more
slots than there are. What is reused of each must be the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_store.domain import Domain
from cache_store.errors import LimitExceededError
from cache_store.groups import CacheGeometry
from cache_store.pool_sizes import StepLimits, num_held
from cache_store.quota import QuotaTable, TenantQuota, TierShare
from cache_store.tier_kind import TierKind
from cache_store.tokens import pack
from tests.support.domains import make_domain
from tests.support.engines import Bench, sampling
from worker.digest_runner import full_and_sliding, sliding_group
from worker.engine_config import EngineConfig
from worker.pins import PinId, PinRequest

pytestmark = pytest.mark.timeout(1_800)  # the nightly profile takes minutes

BLOCK = 2
NUM_BLOCKS = 120
NUM_CACHED = 24
LIMITS = StepLimits(2, 8)
OWN = make_domain("own")
OTHERS = (make_domain("ann"), make_domain("bob"))
GEOMETRIES = (full_and_sliding(BLOCK, (5,)), full_and_sliding(BLOCK, (9, 4)), CacheGeometry((sliding_group(2, 6),), 2))


@dataclass(frozen=True, slots=True)
class Act:
    """One request, or the pin of a prompt, to its end."""

    domain: Domain
    prompt: tuple[int, ...]
    is_pin: bool = False


def prompts(longest: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Some begin alike."""
    return st.tuples(st.integers(0, 3), st.integers(1, longest)).map(
        lambda drawn: (drawn[0],) * (drawn[1] // 2) + tuple(range(drawn[1] - drawn[1] // 2))
    )


def acts(longest_own: int, num_own: int) -> st.SearchStrategy[list[Act]]:
    """Of all tenants."""
    own = st.builds(Act, st.just(OWN), prompts(longest_own))
    others = st.builds(Act, st.sampled_from(OTHERS), prompts(60), st.sampled_from([False, False, False, True]))
    return st.tuples(st.lists(own, max_size=num_own), st.lists(others, max_size=20)).flatmap(
        lambda both: st.permutations(both[0] + both[1])
    )


def reused(geometry: CacheGeometry, share: TierShare, done: list[Act]) -> list[int]:
    """What each request of OWN reuses."""
    num_slots = tuple(
        num_held(group, BLOCK, LIMITS) + NUM_CACHED if group.window else NUM_BLOCKS for group in geometry.groups
    )
    config = EngineConfig(num_step_tokens=LIMITS.num_step_tokens, num_max_sequences=LIMITS.num_sequences)
    bench = Bench(NUM_BLOCKS, geometry=geometry, num_slots=num_slots, config=config, max_model_len=100)
    quota = TenantQuota(MappingProxyType({TierKind.DEVICE: share}))
    greedy = {domain.tenant: TenantQuota(max_pinned=1.0) for domain in OTHERS}
    bench.engine.set_quotas(QuotaTable(1, MappingProxyType({OWN.tenant: quota, **greedy})))
    found: list[int] = []
    for number, act in enumerate(done):
        if act.is_pin:
            pin = PinRequest(act.domain, PinId(str(number)), pack(act.prompt), bench.clock.unix_s() + 1_000, "")
            try:
                bench.engine.pins.pin(pin)
            except LimitExceededError:
                continue
            continue
        answer = bench.answer(act.prompt, sampling(max_tokens=3), domain=act.domain)
        if act.domain is OWN:
            found.append(answer.cached_tokens or 0)
    return found


@settings(max_examples=40)
@given(geometry=st.sampled_from(GEOMETRIES), done=acts(longest_own=40, num_own=10))
def test_others_change_nothing_for_a_strict_tenant(geometry: CacheGeometry, done: list[Act]) -> None:
    share = TierShare(0.5, 0.5)
    alone = [act for act in done if act.domain is OWN]
    assert reused(geometry, share, done) == reused(geometry, share, alone)


@settings(max_examples=40)
@given(geometry=st.sampled_from(GEOMETRIES), done=acts(longest_own=7, num_own=3))
def test_others_take_no_window_within_a_guarantee(geometry: CacheGeometry, done: list[Act]) -> None:
    """Three requests of 9 tokens have five blocks each, which is more than they leave in a window group."""
    share = TierShare(0.75, 1.0)
    alone = [act for act in done if act.domain is OWN]
    assert reused(geometry, share, done) == reused(geometry, share, alone)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=["one", "two", "all slide"])
def test_without_a_guarantee_others_do_take_them(geometry: CacheGeometry) -> None:
    own = [Act(OWN, tuple(range(number, number + 12))) for number in range(0, 36, 12)]
    flood = [Act(OTHERS[0], tuple(range(number, number + 60))) for number in range(0, 600, 60)]
    flood += [Act(OTHERS[1], act.prompt) for act in flood]
    share = TierShare()
    assert sum(reused(geometry, share, [*own, *own])) > sum(reused(geometry, share, [*own, *flood, *own]))
