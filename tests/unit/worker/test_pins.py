"""Pins over a real pool: what they keep, whom they answer, what they cost, and when they end."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from cache_store.domain import Domain
from cache_store.errors import AlreadyExistsError, LimitExceededError
from cache_store.quota import QuotaTable, TenantQuota
from cache_store.tokens import pack
from tests.support.domains import make_domain
from tests.support.stored_prefixes import ACME, BLOCK, GLOBEX, StoredPrefixes
from worker.pins import HOPELESS_RETRY_S, MAX_PINS, PinId, PinInfo, PinRequest, PinTable

PREFIX = range(12)
"""Three blocks."""


class Pinned(StoredPrefixes):
    """A pool of 20 blocks, of which a tenant may pin 10."""

    def __init__(self) -> None:
        super().__init__(num_blocks=20)
        self.set_max_pinned(0.5)
        self.table = PinTable(self.pool, BLOCK, self.clock)

    def set_max_pinned(self, share: float) -> None:
        quota = TenantQuota(max_pinned=share)
        self.pool.set_quotas(QuotaTable(1, MappingProxyType({ACME.tenant: quota, GLOBEX.tenant: quota})))

    def pin(self, tokens: range = PREFIX, pin_id: str = "p", ttl_s: float = 60, domain: Domain = ACME) -> int:
        expires_s = self.clock.unix_s() + ttl_s
        num_blocks = self.table.pin(PinRequest(domain, PinId(pin_id), pack(tokens), expires_s, f"name of {pin_id}"))
        self.check()
        return num_blocks

    def ids(self, domain: Domain = ACME) -> list[str]:
        self.check()
        return [pin.pin_id for pin in self.table.of(domain)]

    def flood(self, domain: Domain = GLOBEX) -> None:
        """A request that takes all that it can get."""
        assert self.request(range(1_000, 1_000 + self.pool.num_available(domain) * BLOCK), domain)

    def check(self) -> None:
        self.table.check_invariants()
        self.pool.check_invariants()


@pytest.fixture
def pinned() -> Pinned:
    return Pinned()


@pytest.mark.parametrize("who", [ACME, GLOBEX], ids=["own", "another tenant's"])
def test_a_pinned_prefix_survives_requests_and_an_unpinned_one_does_not(pinned: Pinned, who: Domain) -> None:
    other = range(500, 512)
    pinned.request(PREFIX)
    pinned.request(other)
    assert pinned.pin() == 3
    pinned.flood(who)
    assert pinned.match(PREFIX) == 12
    assert pinned.match(other) == 0


def test_a_pin_holds_what_is_there_in_full_blocks(pinned: Pinned) -> None:
    pinned.request(range(10))
    assert pinned.pin(range(30)) == 2
    assert pinned.pool.num_held == 2


def test_of_nothing_there_is_no_pin(pinned: Pinned) -> None:
    assert pinned.pin() == 0
    pinned.request(range(3))
    assert pinned.pin(range(3)) == 0
    assert pinned.ids() == []


def test_another_tenants_prefix_is_as_one_that_is_not_there(pinned: Pinned) -> None:
    pinned.request(PREFIX)
    others = [GLOBEX, make_domain("acme", partition="p"), make_domain("acme", epoch="e2")]
    assert [pinned.pin(pin_id=f"p{at}", domain=domain) for at, domain in enumerate(others)] == [0, 0, 0]
    assert pinned.pin() == 3
    assert pinned.pool.num_held == 3


def test_where_nothing_may_be_pinned_another_tenants_prefix_is_still_as_one_that_is_not_there(pinned: Pinned) -> None:
    pinned.set_max_pinned(0.0)
    absent = pinned.pin(domain=GLOBEX)
    pinned.request(PREFIX)
    assert pinned.pin(domain=GLOBEX) == absent == 0
    with pytest.raises(LimitExceededError):
        pinned.pin()


def test_another_tenants_pin_is_absent(pinned: Pinned) -> None:
    pinned.request(PREFIX)
    pinned.pin()
    assert pinned.ids(GLOBEX) == []
    assert not pinned.table.unpin(GLOBEX, PinId("p"))
    assert not pinned.table.unpin(GLOBEX, PinId("absent"))
    assert pinned.ids() == ["p"]
    assert pinned.table.unpin(ACME, PinId("p"))
    assert not pinned.table.unpin(ACME, PinId("p"))
    assert pinned.pool.num_held == 0


def test_two_tenants_may_use_one_id(pinned: Pinned) -> None:
    for domain in (ACME, GLOBEX):
        pinned.request(PREFIX, domain)
        assert pinned.pin(domain=domain) == 3
    assert pinned.table.unpin(GLOBEX, PinId("p"))
    assert (pinned.ids(ACME), pinned.ids(GLOBEX)) == (["p"], [])


def test_pins_of_all_partitions_are_the_tenants_and_those_of_another_epoch_are_absent(pinned: Pinned) -> None:
    partition = make_domain("acme", partition="p")
    pinned.request(PREFIX, partition)
    pinned.pin(domain=partition)
    assert pinned.ids(ACME) == ["p"]
    rotated = make_domain("acme", epoch="e2")
    assert pinned.ids(rotated) == []
    assert not pinned.table.unpin(rotated, PinId("p"))
    assert pinned.table.unpin(ACME, PinId("p"))


def test_a_repeated_call_changes_nothing(pinned: Pinned) -> None:
    pinned.request(PREFIX)
    assert pinned.pin(ttl_s=60) == pinned.pin(ttl_s=600) == 3
    assert pinned.table.of(ACME) == (PinInfo(PinId("p"), "name of p", 3, pinned.clock.unix_s() + 60, ACME.model),)
    assert pinned.table.unpin(ACME, PinId("p"))
    assert pinned.pool.num_held == 0


def test_an_id_names_one_pin_over_all_partitions(pinned: Pinned) -> None:
    pinned.request(PREFIX)
    pinned.pin()
    with pytest.raises(AlreadyExistsError):
        pinned.pin(domain=make_domain("acme", partition="p"))


def test_a_pin_ends_at_its_time_and_its_blocks_can_go(pinned: Pinned) -> None:
    pinned.request(PREFIX)
    pinned.pin(pin_id="short", ttl_s=10)
    pinned.pin(pin_id="long", ttl_s=20)
    pinned.clock.advance(10)
    pinned.table.expire()
    assert pinned.ids() == ["long"]
    assert pinned.pool.num_held == 3
    pinned.clock.advance(10)
    assert pinned.ids() == []
    assert pinned.match(PREFIX) == 12, "what is let go stays cached"
    pinned.flood()
    assert pinned.match(PREFIX) == 0


def test_pins_are_listed_by_their_end(pinned: Pinned) -> None:
    pinned.request(PREFIX)
    for pin_id, ttl_s in (("b", 30), ("a", 10), ("c", 20)):
        pinned.pin(pin_id=pin_id, ttl_s=ttl_s)
    assert pinned.ids() == ["a", "c", "b"]


def test_a_block_in_several_pins_counts_once(pinned: Pinned) -> None:
    pinned.request(range(40))
    for blocks in range(1, 11):
        assert pinned.pin(range(blocks * BLOCK), f"p{blocks}") == blocks
    assert pinned.table.num_pinned(ACME.tenant) == 10
    pinned.table.unpin(ACME, PinId("p10"))
    assert pinned.table.num_pinned(ACME.tenant) == 9


def test_beyond_the_limit_a_tenant_is_told_its_own_numbers_and_when_to_come_again(pinned: Pinned) -> None:
    pinned.request(range(32))
    pinned.request(range(100, 112))
    pinned.request(PREFIX, GLOBEX)
    pinned.pin(PREFIX, "other's", ttl_s=1, domain=GLOBEX)
    pinned.pin(range(32), "first", ttl_s=100)
    pinned.pin(range(16), "inside", ttl_s=40)
    held = pinned.pool.num_held
    with pytest.raises(LimitExceededError, match=r"pinned 8 blocks .* may pin 10; this prompt has 3") as error:
        pinned.pin(range(100, 112), "more")
    assert (error.value.subject, error.value.retry_after_s) == ("pinned blocks", 40)
    assert pinned.pool.num_held == held
    assert pinned.pin(range(100, 108), "less") == 2


def test_a_prompt_beyond_the_whole_limit_is_told_that_waiting_does_not_help(pinned: Pinned) -> None:
    pinned.request(range(44))
    with pytest.raises(LimitExceededError, match="up to 40 tokens can be pinned") as error:
        pinned.pin(range(44))
    assert error.value.retry_after_s == HOPELESS_RETRY_S
    assert pinned.pin(range(40)) == 10


def test_a_lowered_limit_ends_no_pin(pinned: Pinned) -> None:
    pinned.request(PREFIX)
    pinned.pin()
    pinned.set_max_pinned(0.0)
    assert pinned.ids() == ["p"]
    with pytest.raises(LimitExceededError):
        pinned.pin(range(4), "again")


def test_pins_of_an_epoch_that_has_passed_do_not_use_up_the_limit(pinned: Pinned) -> None:
    pinned.request(range(40))
    pinned.pin(range(40))
    rotated = make_domain("acme", epoch="e2")
    pinned.request(PREFIX, rotated)
    assert pinned.pin(pin_id="new", domain=rotated) == 3
    assert pinned.table.num_pinned(ACME.tenant) == 3


def test_the_number_of_pins_is_limited(pinned: Pinned) -> None:
    pinned.request(PREFIX)
    for at in range(MAX_PINS):
        pinned.table.pin(PinRequest(ACME, PinId(str(at)), pack(PREFIX), pinned.clock.unix_s() + 60, ""))
    with pytest.raises(LimitExceededError) as error:
        pinned.pin(pin_id="more")
    assert (error.value.subject, error.value.retry_after_s) == ("pins", 60)


def test_pins_yield_in_the_order_of_their_end_and_no_more_than_needed(pinned: Pinned) -> None:
    for at, ttl_s in enumerate((30, 10, 20)):
        tokens = range(at * 100, at * 100 + 8)
        pinned.request(tokens)
        pinned.pin(tokens, f"p{ttl_s}", ttl_s)
    assert pinned.table.yield_for([ACME.tenant], 3) == 4
    assert pinned.ids() == ["p30"]
    assert pinned.table.num_yielded == 2
    assert pinned.pool.num_held == 2


def test_only_pins_of_the_tenants_that_are_named_yield(pinned: Pinned) -> None:
    for domain in (ACME, GLOBEX):
        pinned.request(PREFIX, domain)
        pinned.pin(domain=domain)
    assert pinned.table.yield_for([GLOBEX.tenant], 100) == 3
    assert (pinned.ids(ACME), pinned.ids(GLOBEX)) == (["p"], [])


def test_pins_that_share_blocks_yield_together_and_those_in_use_stay(pinned: Pinned) -> None:
    pinned.request(PREFIX)
    pinned.pin(pin_id="a", ttl_s=10)
    pinned.pin(pin_id="b", ttl_s=20)
    in_use = range(100, 108)
    pinned.request(in_use)
    pinned.pin(in_use, "used", ttl_s=1)
    held = pinned.hold(in_use)
    assert held is not None
    assert pinned.table.yield_for([ACME.tenant], 1) == 3
    assert pinned.ids() == ["used"]
    pinned.pool.release(held)


def test_the_pins_of_a_domain_end_together_and_no_others(pinned: Pinned) -> None:
    partition = make_domain("acme", partition="p")
    for domain in (ACME, partition, GLOBEX):
        pinned.request(PREFIX, domain)
        for pin_id in "ab":
            pinned.pin(pin_id=pin_id + domain.partition, domain=domain)
    pinned.table.end_domains((ACME, make_domain("initech")))
    assert pinned.ids(partition) == ["a" + partition.partition, "b" + partition.partition]
    assert pinned.ids(GLOBEX) == ["a" + GLOBEX.partition, "b" + GLOBEX.partition]


def test_a_pin_keeps_a_block_beyond_its_time_to_live(pinned: Pinned) -> None:
    pinned.request(PREFIX, ttl_s=10)
    pinned.pin(ttl_s=100)
    pinned.pass_time(50)
    assert pinned.match(PREFIX) == 12
    pinned.clock.advance(50)
    pinned.table.expire()
    pinned.pass_time(0)
    assert pinned.match(PREFIX) == 0
