"""Purges as changes of a tenant's record."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from cache_store.domain import Epoch, ScopeKind, ScopeName
from cache_store.errors import CorruptDataError, NotFoundError
from cache_store.fence import MAX_MARKS, Mark, Scope
from services.tenants.directory import KnownTenant
from services.tenants.fields import Fields, parse_object, to_json
from services.tenants.mark_record import mark_fields, marks_of
from services.tenants.model import Tenant, new_tenant
from services.tenants.purge import EVERYTHING, ModelScope, PartitionScope, Purge, PurgeScope, new_purge, purged
from services.tenants.table import ControlTable, add_tenant, delete_tenant, join, purge_tenant
from tests.support.domains import FORMAT

ACME = new_tenant("acme", 1.0)


def after(tenant: Tenant, *scopes: PurgeScope) -> Tenant:
    for scope in scopes:
        tenant = purged(tenant, new_purge(scope, 2.0))
    return tenant


def root(tenant: Tenant, partition: str = "p", model: str = "m") -> bytes:
    return KnownTenant(tenant, 1).domain(partition, model, FORMAT).root


@pytest.mark.parametrize("scope", [EVERYTHING, PartitionScope("p"), ModelScope("m")])
def test_what_was_purged_has_other_domains(scope: PurgeScope) -> None:
    once = after(ACME, scope)
    assert len({root(ACME), root(once), root(after(once, scope))}) == 3


@pytest.mark.parametrize("scope", [PartitionScope("q"), PartitionScope(""), ModelScope("n")])
def test_a_purge_leaves_other_partitions_and_models_as_they_are(scope: PurgeScope) -> None:
    assert root(after(ACME, scope)) == root(ACME)


def test_purging_everything_is_a_fresh_epoch_without_marks() -> None:
    tenant = after(ACME, PartitionScope("p"), EVERYTHING)
    assert (tenant.epoch_number, tenant.marks) == (1, {})
    assert tenant.epoch != ACME.epoch


def test_a_purge_that_is_written_twice_is_written_once() -> None:
    purge = new_purge(PartitionScope("p"), 2.0)
    table = add_tenant(ControlTable(), ACME)
    once = purge_tenant(table, ACME.id, purge)
    assert join(once, purge_tenant(table, ACME.id, purge)) == once


def test_too_many_marks_become_a_fresh_epoch() -> None:
    full = after(ACME, *(PartitionScope(str(number)) for number in range(MAX_MARKS)))
    assert len(full.marks) == MAX_MARKS
    assert len(after(full, PartitionScope("0")).marks) == MAX_MARKS
    over = after(full, ModelScope("m"))
    assert (over.epoch_number, len(over.marks)) == (ACME.epoch_number + 1, 0)


def test_two_purges_of_one_scope_in_two_histories_join_to_a_purged_scope() -> None:
    table = add_tenant(ControlTable(), ACME)
    left, right = (purge_tenant(table, ACME.id, new_purge(PartitionScope("p"), 2.0)) for _ in range(2))
    assert root(join(left, right).tenants[ACME.id]) in {root(side.tenants[ACME.id]) for side in (left, right)}
    assert join(left, right) == join(right, left)


def test_marks_of_an_epoch_that_has_passed_do_not_come_back() -> None:
    table = add_tenant(ControlTable(), ACME)
    marked = purge_tenant(table, ACME.id, new_purge(PartitionScope("p"), 2.0))
    rotated = purge_tenant(table, ACME.id, Purge(EVERYTHING, Epoch("later"), "", 3.0))
    assert join(marked, rotated) == join(rotated, marked) == rotated


def test_a_deleted_tenant_cannot_be_purged() -> None:
    table = delete_tenant(add_tenant(ControlTable(), ACME), "acme")
    with pytest.raises(NotFoundError, match="deleted"):
        purge_tenant(table, ACME.id, new_purge(EVERYTHING, 2.0))


def read(text: str) -> Fields:
    return parse_object(text, "it")


def test_marks_survive_being_written_down_and_do_not_show_names() -> None:
    tenant = after(ACME, PartitionScope("jane.doe"), ModelScope("m"), ModelScope("m"))
    text = to_json(mark_fields(tenant.marks))
    assert marks_of(read(text)) == tenant.marks
    assert "jane" not in text


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"partition": {}}',
        '{"partition": {"x": {"number": 0, "value": "v"}}, "model": {}}',
        '{"partition": {"x": {"number": 1}}, "model": {}}',
        '{"partition": 3, "model": {}}',
    ],
)
def test_damaged_marks_are_refused(text: str) -> None:
    with pytest.raises(CorruptDataError):
        marks_of(read(text))


def test_joining_takes_more_marks_than_a_purge_would() -> None:
    scopes = [Scope(ScopeKind.MODEL, ScopeName(str(number))) for number in range(MAX_MARKS + 1)]
    halves = [MappingProxyType({scope: Mark(1, "v") for scope in part}) for part in (scopes[:9], scopes[9:])]
    tables = [add_tenant(ControlTable(), replace(ACME, marks=marks)) for marks in halves]
    assert len(join(*tables).tenants[ACME.id].marks) == MAX_MARKS + 1
