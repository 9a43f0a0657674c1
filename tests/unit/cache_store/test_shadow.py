"""What is judged of a tenant with a guarantee, and what follows from it in a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.digest import xxh3_128
from cache_store.domain import Domain
from cache_store.policies.lru import Lru
from cache_store.policy import ClassId, EvictionPolicy, Outcome, Part, Use, UsedBlock
from cache_store.prefix_tree import Block
from cache_store.quota import TierShare
from cache_store.shadow import Sample, Watch, WatchRules
from cache_store.tiers import Granted
from cache_store.tokens import pack
from tests.support.domains import make_domain
from tests.support.geometry import one_group
from tests.support.outcomes import make_outcome
from tests.support.quotas import make_table

RULES = WatchRules(min_evidence=32)
ACME, GLOBEX = make_domain("acme"), make_domain("globex")


class NewestFirst(Lru):
    """Keeps what came first for ever: a class per request, and the last one goes first."""

    def __init__(self) -> None:
        self._num_requests = 0

    def uses(
        self, outcome: Outcome, blocks: Sequence[UsedBlock], num_prompt_blocks: int, now_s: float
    ) -> Sequence[Part]:
        """What is used again stays what it was."""
        self._num_requests += 1
        previous = next((block.use for block in reversed(blocks) if block.use is not None), None)
        return (Part(Use(now_s, previous.class_id if previous else ClassId(self._num_requests)), len(blocks)),)

    def value(self, class_id: ClassId, age_s: float) -> float:
        """The newest class goes first."""
        return -class_id


def miss(watch: Watch, number: int) -> None:
    """A request for a block that its tenant had to compute."""
    watch.ask(1, 0)
    watch.use([_block(number, None)])
    watch.judge()


def hit(watch: Watch, number: int) -> None:
    """A request for a block that its tenant had."""
    watch.ask(1, 1)
    watch.use([_block(number, Use(0.0, ClassId(0)))])
    watch.judge()


def _block(number: int, use: Use | None) -> Block:
    block = Block(0, (0,))
    block.digest = number.to_bytes(16, "little")
    block.use = use
    return block


@pytest.fixture
def watch() -> Watch:
    watch = Watch(RULES)
    watch.guarantee(8)
    return watch


def scan(watch: Watch, numbers: Iterator[int], num_blocks: int) -> None:
    """Asks for blocks that nobody has asked for."""
    for _ in range(num_blocks):
        miss(watch, next(numbers))


def test_a_small_pool_is_followed_as_a_whole_and_a_large_one_in_part() -> None:
    blocks = []
    for number in range(20_000):
        block = Block(number, (number,))
        block.digest = xxh3_128(number.to_bytes(4, "little"))
        blocks.append(block)
    assert len(Sample(1_500).of(blocks)) == len(blocks)
    assert len(Sample(4_000).of(blocks)) == pytest.approx(2_500, rel=0.1)
    assert len(Sample(70_000).of(blocks)) == pytest.approx(20_000 / 16, rel=0.1)
    assert Sample(70_000).part_of(32_000) == 2_000


def test_a_guarantee_is_useless_after_evidence_and_not_before(watch: Watch) -> None:
    scan(watch, iter(range(31)), 31)
    assert not watch.is_useless
    scan(watch, iter(range(31, 40)), 1)
    assert watch.is_useless


def test_one_hit_in_a_hundred_is_use(watch: Watch) -> None:
    numbers = iter(range(1_000))
    for _ in range(20):
        scan(watch, numbers, 20)
        hit(watch, next(numbers))
    assert not watch.is_useless


def test_hits_of_blocks_that_are_not_followed_are_hits(watch: Watch) -> None:
    numbers = iter(range(1_000))
    for _ in range(100):
        watch.ask(1, 1)
        scan(watch, numbers, 5)
    assert not watch.is_useless


def test_what_the_shadow_would_have_hit_brings_the_guarantee_back(watch: Watch) -> None:
    numbers = iter(range(1_000))
    scan(watch, numbers, 40)
    assert watch.is_useless
    miss(watch, 39)
    assert not watch.is_useless


def test_after_a_wrong_judgement_it_takes_twice_the_evidence(watch: Watch) -> None:
    numbers = iter(range(1_000))
    scan(watch, numbers, 32)
    miss(watch, 31)
    scan(watch, numbers, 63)
    assert not watch.is_useless
    scan(watch, numbers, 1)
    assert watch.is_useless


def test_what_is_older_than_the_guarantee_holds_is_no_reason_to_give_it_back(watch: Watch) -> None:
    scan(watch, iter(range(40)), 40)
    miss(watch, 0)
    assert watch.is_useless


def test_a_rule_of_zero_lends_no_guarantee() -> None:
    watch = Watch(WatchRules(useless_density=0.0, min_evidence=32))
    watch.guarantee(8)
    scan(watch, iter(range(1_000)), 1_000)
    assert not watch.is_useless


def test_what_chance_may_lose_changes_no_order(watch: Watch) -> None:
    numbers = iter(range(1_000))
    for _ in range(10):
        miss(watch, 500)
        scan(watch, numbers, 4)
    assert not watch.prefers_lru, "nine times one lost block: three standard deviations"
    miss(watch, 500)
    assert watch.prefers_lru


def test_lagging_a_little_for_long_changes_the_order(watch: Watch) -> None:
    numbers = iter(range(1_000))
    for _ in range(20):
        miss(watch, 500)
        miss(watch, 500)
        scan(watch, numbers, 40)
    assert watch.prefers_lru


def test_a_lead_of_before_does_not_excuse_what_is_lost_now(watch: Watch) -> None:
    numbers = iter(range(1_000))
    for _ in range(64):
        hit(watch, next(numbers))
    assert not watch.prefers_lru
    for _ in range(33):
        miss(watch, 500)
    assert watch.prefers_lru


class Tenants:
    """Whole requests of several tenants in one pool."""

    def __init__(self, policy: Callable[[], EvictionPolicy], num_blocks: int = 64, **shares: TierShare) -> None:
        self.clock = ManualClock()
        self.pool = BlockPool(one_group(1), num_blocks, self.clock, policy=policy, watch_rules=RULES)
        self.pool.set_quotas(make_table(**shares))

    def ask(self, domain: Domain, first: int, num_blocks: int = 4) -> int:
        """A request; blocks that it hit."""
        self.clock.advance(1.0)
        tokens = pack(range(first, first + num_blocks))
        match = self.pool.match_and_pin(domain, tokens, num_blocks)
        self.pool.note_reuse(domain, match)
        granted = self.pool.allocate(domain, num_blocks - len(match.blocks))
        assert isinstance(granted, Granted)
        parent = match.blocks[-1] if match.blocks else None
        new = self.pool.commit(
            domain, parent, granted.blocks, pack(range(first + len(match.blocks), first + num_blocks))
        )
        self.pool.release((*match.blocks, *new), make_outcome())
        return len(match.blocks)

    def used(self, domain: Domain) -> int:
        """Blocks of the tenant."""
        return self.pool.use_of(domain).used_blocks


def chat(number: int) -> int:
    """First token of a request: every other one asks for the same, the others for eleven things in turn."""
    return 0 if number % 2 else 100 * (number // 2 % 11)


def test_a_scanners_guarantee_is_lent_until_it_has_use_for_it() -> None:
    tenants = Tenants(Lru, acme=TierShare(0.5), globex=TierShare(0.5))
    for number in range(100):
        tenants.ask(GLOBEX, chat(number))
        tenants.ask(ACME, 100_000 + 100 * number)
    assert tenants.used(GLOBEX) == 44
    hits = [tenants.ask(ACME, 500_000 + 100 * (number % 8)) for number in range(200)]
    for number in range(100):
        tenants.ask(GLOBEX, chat(number))
    assert tenants.used(ACME) == 32
    assert hits[-8:] == [4] * 8
    tenants.pool.check_invariants()


def test_a_strict_scanner_keeps_its_part() -> None:
    tenants = Tenants(Lru, acme=TierShare(0.5, 0.5), globex=TierShare(0.5))
    for number in range(100):
        tenants.ask(GLOBEX, chat(number))
        tenants.ask(ACME, 100_000 + 100 * number)
    assert tenants.used(GLOBEX) == 32
    assert tenants.pool.num_available(ACME) == 32


def test_a_policy_that_does_worse_than_lru_is_not_followed() -> None:
    """What is hot changes every 50 requests; the policy never lets go of what was hot first."""
    hits = {}
    for name, policy, share in (
        ("lru", Lru, TierShare(1.0)),
        ("guarded", NewestFirst, TierShare(1.0)),
        ("unguarded", NewestFirst, TierShare(0.0)),
    ):
        tenants = Tenants(policy, acme=share)
        hits[name] = sum(tenants.ask(ACME, 10_000 * (number // 50) + 100 * (number % 12)) for number in range(1_000))
    assert hits["guarded"] > 0.85 * hits["lru"]
    assert hits["unguarded"] < 0.5 * hits["lru"]
