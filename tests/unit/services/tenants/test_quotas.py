"""Quotas and limits of tenants: changes, sums that do not fit, what of two stores is in force."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cache_store.domain import Epoch, TenantId
from cache_store.errors import CorruptDataError, InvalidRequestError, PreconditionError
from cache_store.quota import DEFAULT_QUOTA, TierShare
from cache_store.tier_kind import TierKind
from services.tenants.fields import Fields
from services.tenants.guarantees import Shortfall, quotas_in_force, shortfalls
from services.tenants.model import NO_LIMITS, Tenant, TenantLimits, new_tenant
from services.tenants.quota_change import NO_CHANGE, QuotaChange, ShareChange, with_terms
from services.tenants.quota_record import terms_fields, with_terms_of
from services.tenants.state import ControlState
from services.tenants.table import ControlTable, add_tenant, delete_tenant, join, rotate_epoch, set_quota

DEVICE = TierKind.DEVICE
ACME = replace(new_tenant("acme", 1.0), id=TenantId("1"))
GLOBEX = replace(new_tenant("globex", 2.0), id=TenantId("2"))
TWO = add_tenant(add_tenant(ControlTable(), ACME), GLOBEX)


def guarantee(minimum: float, maximum: float | None = None) -> QuotaChange:
    return QuotaChange(shares={DEVICE: ShareChange(minimum, maximum)})


def share_of(table: ControlTable, name: str) -> TierShare:
    return table.tenant_by_name(name).quota.share(DEVICE)


def in_force(table: ControlTable, tenant: Tenant) -> TierShare:
    return quotas_in_force(ControlState(None, table)).of(tenant.id).share(DEVICE)


def test_a_change_leaves_what_it_does_not_name() -> None:
    table = set_quota(TWO, "acme", guarantee(0.25, 0.5), 3.0)
    table = set_quota(table, "acme", QuotaChange(weight=2.0, tokens_per_s=100), 4.0)
    table = set_quota(table, "acme", guarantee(0.3), 5.0)
    acme = table.tenant_by_name("acme")
    assert (acme.quota.share(DEVICE), acme.quota.weight, acme.quota.max_pinned) == (TierShare(0.3, 0.5), 2.0, 0.1)
    assert acme.limits == TenantLimits(None, 100)
    assert (acme.quota_number, acme.quota_unix_s) == (3, 5.0)
    assert table.tenant_by_name("globex") == GLOBEX


def test_a_limit_of_none_is_taken_away() -> None:
    table = set_quota(TWO, "acme", QuotaChange(requests_in_flight=3, tokens_per_s=5), 3.0)
    assert set_quota(table, "acme", QuotaChange(requests_in_flight=0), 4.0).tenant_by_name(
        "acme"
    ).limits == TenantLimits(None, 5)


@pytest.mark.parametrize("change", [NO_CHANGE, guarantee(0.0, 1.0), QuotaChange(weight=1.0, requests_in_flight=0)])
def test_a_change_that_changes_nothing_is_none(change: QuotaChange) -> None:
    assert set_quota(TWO, "acme", change, 3.0) is TWO
    assert with_terms(ACME, change) is ACME


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (guarantee(1.2), "0 to 1"),
        (guarantee(float("nan")), "0 to 1"),
        (guarantee(0.5, 0.25), "min 50 % is above max 25 %; lower the one or raise the other"),
        (guarantee(0.0, 0.0), "could not run a single request"),
        (QuotaChange(weight=0.0), "0.001 to 1000"),
        (QuotaChange(weight=5e-324), "0.001 to 1000"),
        (QuotaChange(weight=float("nan")), "0.001 to 1000"),
        (QuotaChange(max_pinned=-0.1), "0 to 1"),
        (QuotaChange(requests_in_flight=-1), "1 to 4294967295"),
        (QuotaChange(requests_in_flight=1 << 32), "1 to 4294967295"),
        (QuotaChange(tokens_per_s=1 << 60), "no limit at all"),
    ],
)
def test_bad_values_are_refused_with_what_would_work(change: QuotaChange, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        set_quota(TWO, "acme", change, 3.0)


def test_a_guarantee_beyond_what_is_free_is_refused_and_says_what_is_free() -> None:
    table = set_quota(TWO, "acme", guarantee(0.7), 3.0)
    with pytest.raises(PreconditionError, match=r"min 40 % does not fit.*add up to 70 %, 30 % is free"):
        set_quota(table, "globex", guarantee(0.4), 4.0)
    assert share_of(set_quota(table, "globex", guarantee(0.3), 4.0), "globex").minimum == 0.3
    third = with_terms(new_tenant("initech", 5.0), guarantee(0.31))
    with pytest.raises(PreconditionError, match="30 % is free"):
        add_tenant(table, third)


def test_thirds_of_a_tier_fit_together() -> None:
    table = add_tenant(TWO, new_tenant("initech", 3.0))
    for name in ("acme", "globex", "initech"):
        table = set_quota(table, name, guarantee(0.1 + 0.2 + 1 / 30), 4.0)
    assert shortfalls(table) == ()


def overcommitted() -> ControlTable:
    """Two stores that had each promised the same room, joined; globex's promise is the younger one."""
    return join(set_quota(TWO, "acme", guarantee(0.7), 3.0), set_quota(TWO, "globex", guarantee(0.6, 0.6), 4.0))


def test_of_two_stores_that_promised_the_same_room_the_younger_promise_gives_way() -> None:
    table = overcommitted()
    assert in_force(table, ACME) == TierShare(0.7, 1.0)
    assert in_force(table, GLOBEX) == TierShare(1 - 0.7, 0.6)
    assert share_of(table, "globex") == TierShare(0.6, 0.6)
    assert shortfalls(table) == (Shortfall("globex", DEVICE, 0.6, 1 - 0.7),)


def test_a_tenant_without_room_has_no_guarantee_and_is_still_served() -> None:
    table = join(set_quota(TWO, "acme", guarantee(1.0, 1.0), 3.0), set_quota(TWO, "globex", guarantee(0.6), 4.0))
    assert in_force(table, GLOBEX) == TierShare(0.0, 1.0)


def test_too_many_promises_can_be_lowered_one_by_one_and_not_raised() -> None:
    table = overcommitted()
    with pytest.raises(PreconditionError, match="30 % is free"):
        set_quota(table, "globex", guarantee(0.61, 0.61), 5.0)
    lower = set_quota(table, "globex", guarantee(0.5, 0.5), 5.0)
    assert shortfalls(lower) == (Shortfall("globex", DEVICE, 0.5, 1 - 0.7),)
    assert shortfalls(set_quota(lower, "globex", guarantee(0.3, 0.3), 6.0)) == ()
    assert shortfalls(delete_tenant(table, "acme")) == ()


def test_a_newer_epoch_does_not_bring_an_older_quota_back() -> None:
    rotated = rotate_epoch(TWO, "acme", Epoch("late"), 9.0)
    joined = join(rotated, set_quota(TWO, "acme", guarantee(0.25), 3.0)).tenant_by_name("acme")
    assert (joined.epoch, joined.quota.share(DEVICE).minimum) == ("late", 0.25)


def test_without_a_quota_a_tenant_is_not_in_the_table_in_force() -> None:
    assert quotas_in_force(ControlState(None, TWO)).quotas == {}
    assert (ACME.quota, ACME.limits) == (DEFAULT_QUOTA, NO_LIMITS)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("tiers", {"moon": {"min": 0.1, "max": 1}}, "no tier 'moon'"),
        ("tiers", {"device": {"min": 2, "max": 1}}, "0 to 1"),
        ("tiers", {"device": {}}, "missing"),
        ("tiers", [], "an object"),
        ("weight", 0, "weight"),
        ("requests_in_flight", "3", "an integer"),
        ("tokens_per_s", 0, "no limit at all"),
        ("number", None, "an integer"),
        ("audit_share", None, "a number"),
        ("audit_share", 2, "audit_share is 2"),
    ],
)
def test_damaged_quotas_are_named(name: str, value: object, says: str) -> None:
    fields = {**terms_fields(with_terms(ACME, guarantee(0.25))), name: value}
    with pytest.raises(CorruptDataError, match=f"the place.*{says}"):
        with_terms_of(Fields(fields, "the place"), ACME, ("audit_share",))
