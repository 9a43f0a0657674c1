"""Since when a worker knows how many keys were revoked."""

from __future__ import annotations

from cache_store.domain import TenantId
from worker.revoked_keys import RevokedKeys

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


def test_a_number_counts_from_when_it_was_heard_of() -> None:
    keys = RevokedKeys()
    keys.take({ACME: 1}, 10.0)
    keys.take({ACME: 1, GLOBEX: 4}, 20.0)
    keys.take({ACME: 3, GLOBEX: 4}, 30.0)
    assert [keys.settled(ACME, at_s) for at_s in (9.0, 10.0, 29.0, 30.0)] == [0, 1, 1, 3]
    assert keys.settled(GLOBEX, 20.0) == 4
    assert keys.settled(TenantId("nobody"), 99.0) == 0


def test_an_older_number_takes_nothing_back() -> None:
    keys = RevokedKeys()
    keys.take({ACME: 3}, 10.0)
    keys.take({ACME: 1}, 20.0)
    assert keys.settled(ACME, 20.0) == 3


def test_tenants_that_are_gone_are_forgotten() -> None:
    keys = RevokedKeys()
    keys.take({ACME: 3}, 10.0)
    keys.take({}, 20.0)
    assert keys.settled(ACME, 20.0) == 0
