"""The control table, where a name or an example says more than a law: see also tests/property/test_tenants.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cache_store.domain import Epoch, TenantId
from cache_store.errors import PreconditionError
from services.tenants.api_key import new_api_key
from services.tenants.model import Tenant, new_tenant
from services.tenants.table import (
    ControlTable,
    add_key,
    add_tenant,
    delete_tenant,
    join,
    name_conflicts,
    rotate_epoch,
    table_of,
)

EMPTY = ControlTable()


def tenant(tenant_id: str, name: str, create_unix_s: float) -> Tenant:
    return replace(new_tenant(name, create_unix_s), id=TenantId(tenant_id))


OLD, YOUNG = tenant("00000001", "acme", 1.0), tenant("00000002", "acme", 2.0)


def names(table: ControlTable) -> dict[TenantId, str]:
    return {one.id: one.name for one in table.tenants.values()}


def test_of_two_tenants_that_came_to_one_name_the_older_keeps_it() -> None:
    joined = join(add_tenant(EMPTY, YOUNG), add_tenant(EMPTY, OLD))
    assert names(joined) == {OLD.id: "acme", YOUNG.id: "acme-00000002"}


def test_a_name_once_changed_stays_changed_for_a_router_that_knew_the_old_one() -> None:
    before = add_tenant(EMPTY, YOUNG)
    after = delete_tenant(join(before, add_tenant(EMPTY, OLD)), "acme")
    assert names(join(before, after)) == names(join(after, before)) == {YOUNG.id: "acme-00000002"}


def test_a_name_made_longer_avoids_one_that_is_there() -> None:
    there = tenant("00000003", "acme-00000002", 0.0)
    joined = join(add_tenant(add_tenant(EMPTY, OLD), there), add_tenant(EMPTY, YOUNG))
    joined.check_invariants()
    assert names(joined)[there.id] == "acme-00000002"


def test_name_conflicts_are_between_living_tenants_of_different_identity() -> None:
    here, there = add_tenant(EMPTY, OLD), add_tenant(EMPTY, YOUNG)
    assert name_conflicts(here, there) == ["acme"]
    assert name_conflicts(here, here) == []
    assert name_conflicts(delete_tenant(here, "acme"), there) == []
    assert name_conflicts(here, delete_tenant(there, "acme")) == []
    assert name_conflicts(delete_tenant(there, "acme"), there) == []


def test_of_two_histories_the_one_with_more_rotations_has_the_epoch() -> None:
    base = add_tenant(EMPTY, OLD)
    once = rotate_epoch(base, "acme", Epoch("late"), 9.0)
    twice = rotate_epoch(rotate_epoch(base, "acme", Epoch("b"), 3.0), "acme", Epoch("c"), 4.0)
    assert join(once, twice).tenants[OLD.id].epoch == "c"


def test_the_refusal_of_a_third_key_names_the_two() -> None:
    keys = [new_api_key(OLD.id, create_unix_s).key for create_unix_s in (1.0, 2.0, 3.0)]
    table = add_key(add_key(add_tenant(EMPTY, OLD), keys[0]), keys[1])
    with pytest.raises(PreconditionError, match=f"{keys[0].key_id}.*{keys[1].key_id}.*revoke one") as caught:
        add_key(table, keys[2])
    assert keys[2].key_id not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (table_of([OLD, YOUNG], [], []), "same name"),
        (table_of([OLD], [], [OLD.id]), "alive and deleted"),
        (table_of([replace(OLD, secret=b"short")], [], []), "5 bytes"),
        (table_of([], [new_api_key(OLD.id, 1.0).key], []), "belongs to no tenant"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(table: ControlTable, fault: str) -> None:
    assert fault in str(table.fault())
    with pytest.raises(AssertionError, match=fault):
        table.check_invariants()
