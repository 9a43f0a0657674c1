"""Tiers below the device: tenants that match, load, compute, evict, change quotas and are purged, while what is on its
way between tiers is late, comes in any order and fails, against what the slots really hold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from random import Random
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache_store.domain import TenantId
from cache_store.policies.class_aware import ClassAware
from cache_store.policies.lru import Lru
from cache_store.policy import EvictionPolicy, Outcome
from cache_store.quota import QuotaTable, TierShare
from tests.support.domains import make_domain
from tests.support.odd_policy import OddPolicy
from tests.support.outcomes import make_outcome
from tests.support.quotas import make_quota, quota_tables
from tests.support.tier_driver import TierDriver

pytestmark = pytest.mark.timeout(1_800)  # the nightly profile takes minutes

TENANTS = ("acme", "globex", "initech")
DOMAINS = (*(make_domain(tenant) for tenant in TENANTS), make_domain("acme", partition="p"))
POLICIES: tuple[Callable[[], EvictionPolicy], ...] = (Lru, OddPolicy, ClassAware)
SIZES = ((2, 3, 4), (4, 2, 0), (6, 4, 3), (8, 6, 24), (6, 3, 8), (6, 8, 0), (8, 4, 16), (12, 5, 9))
"""Blocks on the device, in the host's memory, on disk."""

is_nightly = settings.get_current_profile_name() == "nightly"
walks = settings(max_examples=10_000 if is_nightly else 80)

outcomes = st.one_of(
    st.none(),
    st.builds(
        make_outcome,
        prompt_tokens=st.integers(0, 40),
        output_tokens=st.integers(0, 40),
        stop=st.sampled_from(["length", "stop:1"]),
        session=st.sampled_from([b"", b"a"]),
        session_end=st.sampled_from([False, False, True]),
        ttl_s=st.sampled_from([math.inf, math.inf, 1.0, 5.0]),
    ),
)
numbers = st.integers(0, len(DOMAINS) - 1)
prompts = st.integers(2, 12).flatmap(lambda size: st.lists(st.integers(0, 1), min_size=size, max_size=size))
which = st.integers(0, 50)


class TierMachine(RuleBasedStateMachine):
    """One pool with tiers below, all of them too small."""

    @initialize(size=st.sampled_from(SIZES), policy=st.sampled_from(POLICIES), quotas=quota_tables(TENANTS))
    def start(self, size: tuple[int, int, int], policy: Callable[[], EvictionPolicy], quotas: QuotaTable) -> None:
        self.driver = TierDriver(DOMAINS, size, policy, quotas)

    @rule(quotas=quota_tables(TENANTS))
    def change_quotas(self, quotas: QuotaTable) -> None:
        self.driver.change_quotas(quotas)

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.driver.wait(seconds)

    @rule(number=numbers, ids=prompts, outcome=outcomes)
    def request(self, number: int, ids: list[int], outcome: Outcome | None) -> None:
        self.driver.compute(number, ids)
        self.driver.step(0, is_well=True)
        if self.driver.held:
            self.driver.finish(-1, outcome)

    @rule(number=numbers, ids=prompts)
    def compute(self, number: int, ids: list[int]) -> None:
        self.driver.compute(number, ids)

    @rule(number=numbers, ids=prompts)
    def load(self, number: int, ids: list[int]) -> None:
        self.driver.load(number, ids)

    @precondition(lambda self: self.driver.computing)
    @rule(number=which)
    def give_up(self, number: int) -> None:
        self.driver.give_up(number)

    @rule(seed=st.integers(0, 1 << 32), is_well=st.sampled_from([True, True, True, False]))
    def step(self, seed: int, is_well: bool) -> None:
        self.driver.step(seed, is_well)

    @precondition(lambda self: self.driver.world.spills)
    @rule(number=which, ok=st.sampled_from([True, True, False]))
    def end_spill(self, number: int, ok: bool) -> None:
        self.driver.end_spill(number, ok)

    @precondition(lambda self: self.driver.world.loads)
    @rule(number=which, ok=st.sampled_from([True, True, True, False]))
    def end_load(self, number: int, ok: bool) -> None:
        self.driver.end_load(number, ok)

    @precondition(lambda self: self.driver.held)
    @rule(number=which, outcome=outcomes)
    def finish(self, number: int, outcome: Outcome | None) -> None:
        self.driver.finish(number, outcome)

    @rule(number=numbers)
    def drop(self, number: int) -> None:
        self.driver.drop(number)

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "driver"):
            self.driver.books_agree()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.end()


TierMachine.TestCase.settings = settings(
    deadline=None, stateful_step_count=40, max_examples=1_000 if is_nightly else 40
)
TestTiers = TierMachine.TestCase


def walk(random: Random, driver: TierDriver, num_steps: int) -> None:
    """Requests and moves at random, more of what fills the tiers than of what empties them."""
    for _ in range(num_steps):
        act(random, driver)
        driver.books_agree()
    driver.end()


def act(random: Random, driver: TierDriver) -> None:
    number = random.choice([0, 0, 0, 1, 1, 2, 3])
    ids = random.choices((0, 1), (3, 1), k=random.randint(2, 12))
    match random.choices(
        ("compute", "load", "step", "spills", "loads", "finish", "wait", "quotas", "drop", "give up"),
        (20, 20, 22, 12, 12, 16, 2, 0.7, 0.5, 2),
    )[0]:
        case "compute":
            driver.compute(number, ids)
        case "load":
            driver.load(number, ids)
        case "step":
            driver.step(random.getrandbits(32), is_well=random.random() < 0.92)
        case "spills":
            for _ in range(min(3, len(driver.world.spills))):
                driver.end_spill(random.randrange(99), ok=random.random() < 0.92)
        case "loads":
            for _ in range(min(3, len(driver.world.loads))):
                driver.end_load(random.randrange(99), ok=random.random() < 0.92)
        case "finish":
            for _ in range(min(4, len(driver.held))):
                driver.finish(random.randrange(99), _outcome(random))
        case "wait":
            driver.wait(random.choice([0.5, 2.0, 10.0]))
        case "quotas":
            driver.change_quotas(_quotas(random))
        case "drop":
            driver.drop(number)
        case "give up" if driver.computing:
            driver.give_up(random.randrange(99))


def _outcome(random: Random) -> Outcome | None:
    if random.random() < 0.1:
        return None
    ttl_s = random.choice([math.inf] * 5 + [2.0, 10.0])
    return make_outcome(random.randint(0, 40), random.randint(0, 40), session_end=random.random() < 0.1, ttl_s=ttl_s)


def _quotas(random: Random) -> QuotaTable:
    left, quotas = 8, {}
    for tenant in TENANTS:
        minimum = random.randint(0, left)
        left -= minimum
        maximum = minimum if minimum and random.random() < 0.3 else max(minimum, random.randint(1, 8))
        share = TierShare(minimum / 8, maximum / 8)
        quotas[TenantId(tenant)] = make_quota(share, random.choice([0.5, 1.0, 3.0]))
    return QuotaTable(1, MappingProxyType(quotas))


@walks
@given(seed=st.integers(0, 2**64 - 1))
def test_what_is_found_is_what_was_stored_whatever_is_late_or_fails(seed: int) -> None:
    random = Random(seed)
    driver = TierDriver(DOMAINS, random.choice(SIZES), random.choice(POLICIES), _quotas(random))
    walk(random, driver, 120)


def test_the_walks_reach_all_tiers() -> None:
    """Nothing above says anything where nothing happens."""
    seen: Counter[str] = Counter()
    for seed in range(20):
        random = Random(seed)
        driver = TierDriver(DOMAINS, (8, 4, 24), Lru, QuotaTable(1, MappingProxyType({})))
        walk(random, driver, 200)
        seen += driver.seen
    expected = ("loads from host", "loads from disk", "stores", "spills", "failed steps")
    assert min(seen[each] for each in expected) > 25, seen
