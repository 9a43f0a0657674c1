"""A tenant purges as often as it needs to, and not all the time."""

from __future__ import annotations

import pytest

from cache_store.clock import ManualClock
from cache_store.domain import TenantId
from cache_store.errors import LimitExceededError
from services.router.purge_rate import MAX_BURST, PurgeRate

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def rate(clock: ManualClock) -> PurgeRate:
    return PurgeRate(clock)


def test_beyond_a_burst_the_tenant_is_told_when_to_come_again(rate: PurgeRate, clock: ManualClock) -> None:
    for _ in range(MAX_BURST):
        rate.take(ACME)
    with pytest.raises(LimitExceededError, match="purge 20 times at once") as refused:
        rate.take(ACME)
    clock.advance(refused.value.retry_after_s)
    rate.take(ACME)
    with pytest.raises(LimitExceededError):
        rate.take(ACME)


def test_what_one_tenant_purges_is_no_other_tenants_business(rate: PurgeRate) -> None:
    for _ in range(MAX_BURST):
        rate.take(ACME)
    rate.take(GLOBEX)
    with pytest.raises(LimitExceededError):
        rate.take(ACME)


def test_levels_of_thousands_of_tenants_are_forgotten_once_they_are_drained(
    rate: PurgeRate, clock: ManualClock
) -> None:
    for number in range(5_000):
        rate.take(TenantId(str(number)))
        clock.advance(0.01)
    assert len(rate._levels) <= 1_100
    for _ in range(MAX_BURST):
        rate.take(ACME)
    with pytest.raises(LimitExceededError):
        rate.take(ACME)
