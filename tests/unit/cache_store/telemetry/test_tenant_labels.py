"""Labels of tenants are bounded, and stay their tenants'."""

from __future__ import annotations

from cache_store.domain import TenantId
from cache_store.telemetry.tenant_labels import OTHER, TenantLabels


def test_those_beyond_the_bound_share_one_label() -> None:
    labels = TenantLabels(lambda _: True, max_tenants=2)
    assert [labels.of(TenantId(str(at)), f"tenant-{at}") for at in range(4)] == ["tenant-0", "tenant-1", OTHER, OTHER]
    assert labels.of(TenantId("1"), "tenant-1") == "tenant-1"


def test_a_label_of_a_deleted_tenant_is_free_again() -> None:
    alive = {TenantId("a"), TenantId("b"), TenantId("c")}
    labels = TenantLabels(alive.__contains__, max_tenants=2)
    for name in ("a", "b", "c"):
        labels.of(TenantId(name), name)
    alive.remove(TenantId("a"))
    assert labels.forget_dead() == {"a"}
    assert labels.of(TenantId("c"), "c") == "c"


def test_the_name_of_a_deleted_tenant_goes_to_its_successor() -> None:
    alive = {TenantId("old")}
    labels = TenantLabels(alive.__contains__)
    labels.of(TenantId("old"), "acme")
    alive.add(TenantId("new"))
    labels.of(TenantId("new"), "acme")
    alive.remove(TenantId("old"))
    assert labels.forget_dead() == frozenset()
    assert labels.of(TenantId("new"), "acme") == "acme"
