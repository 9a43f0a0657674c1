"""The directory alone: age, readiness, exchange of the table."""

from __future__ import annotations

import math

import pytest

from cache_store.clock import ManualClock
from cache_store.errors import NotFoundError, UnauthenticatedError
from services.tenants.api_key import new_api_key
from services.tenants.directory import CONTROL_AGE_BOUND_S, TenantDirectory
from services.tenants.model import new_tenant
from services.tenants.state import EMPTY_STATE, ControlState, Head
from services.tenants.table import add_key, add_tenant, delete_tenant, revoke_key

HEAD = Head("store", 3, "write", "master")
ACME, GLOBEX = new_tenant("acme", 1.0), new_tenant("globex", 1.0)
ACME_KEY, GLOBEX_KEY = new_api_key(ACME.id, 1.0), new_api_key(GLOBEX.id, 1.0)
TABLE = add_tenant(add_tenant(EMPTY_STATE.table, ACME), GLOBEX)
TABLE = add_key(add_key(TABLE, ACME_KEY.key), GLOBEX_KEY.key)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def directory(clock: ManualClock) -> TenantDirectory:
    made = TenantDirectory(clock)
    made.install(ControlState(HEAD, TABLE))
    made.confirm(clock.monotonic_s())
    return made


def test_each_key_opens_its_own_tenant(directory: TenantDirectory) -> None:
    assert directory.authenticate(ACME_KEY.text) == ACME
    assert directory.authenticate(GLOBEX_KEY.text) == GLOBEX


def test_the_id_of_one_key_with_the_secret_of_another_opens_nothing(directory: TenantDirectory) -> None:
    mixed = ACME_KEY.text[:19] + GLOBEX_KEY.text[19:]
    with pytest.raises(UnauthenticatedError):
        directory.authenticate(mixed)


def test_a_revoked_key_and_the_keys_of_a_deleted_tenant_open_nothing(directory: TenantDirectory) -> None:
    directory.install(ControlState(HEAD, revoke_key(delete_tenant(TABLE, "globex"), ACME_KEY.key.key_id)))
    for key in (ACME_KEY, GLOBEX_KEY):
        with pytest.raises(UnauthenticatedError):
            directory.authenticate(key.text)


def test_names_and_ids(directory: TenantDirectory) -> None:
    assert directory.tenant_by_name("acme") == ACME
    assert directory.tenant_by_id(ACME.id) == ACME
    directory.install(ControlState(HEAD, delete_tenant(TABLE, "acme")))
    assert directory.tenant_by_id(ACME.id) is None
    with pytest.raises(NotFoundError):
        directory.tenant_by_name("acme")


def test_age_counts_from_the_moment_of_asking(directory: TenantDirectory, clock: ManualClock) -> None:
    asked_s = clock.monotonic_s()
    clock.advance(4)
    directory.confirm(asked_s)
    assert directory.age_s() == 4
    directory.confirm(asked_s - 1)  # an answer that came late makes nothing older
    assert directory.age_s() == 4


def test_stale_begins_past_the_bound(directory: TenantDirectory, clock: ManualClock) -> None:
    clock.advance(CONTROL_AGE_BOUND_S)
    assert not directory.is_stale
    clock.advance(0.001)
    assert directory.is_stale
    directory.confirm(clock.monotonic_s())
    assert not directory.is_stale


def test_before_the_first_sync(clock: ManualClock) -> None:
    directory = TenantDirectory(clock)
    assert (directory.is_ready, directory.is_stale, directory.age_s()) == (False, True, math.inf)
    assert directory.generation == 0
    directory.confirm(clock.monotonic_s())
    assert (directory.is_ready, directory.is_stale, directory.age_s()) == (True, False, 0)
