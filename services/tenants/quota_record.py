"""Quota and limits of a tenant as part of its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from cache_store.errors import CorruptDataError, InvalidRequestError
from cache_store.quota import DEFAULT_QUOTA, TenantQuota, TierShare
from cache_store.tier_kind import TierKind
from services.tenants.fields import Fields, JsonObject
from services.tenants.model import Tenant, TenantLimits


def terms_fields(tenant: Tenant) -> JsonObject:
    """The part of a record that tells quota and limits."""
    quota, limits = tenant.quota, tenant.limits
    return {
        "number": tenant.quota_number,
        "unix_s": tenant.quota_unix_s,
        "tiers": {tier.value: {"min": each.minimum, "max": each.maximum} for tier, each in quota.shares.items()},
        "weight": quota.weight,
        "max_pinned": quota.max_pinned,
        "audit_share": quota.audit_share,
        "requests_in_flight": limits.requests_in_flight,
        "tokens_per_s": limits.tokens_per_s,
    }


def with_terms_of(fields: Fields, tenant: Tenant, later: Sequence[str]) -> Tenant:
    """`tenant` with the quota and limits of that part; `later` names fields that came later.

    Raises CorruptDataError.
    """
    try:
        return replace(
            tenant,
            quota=_quota(fields, later),
            limits=TenantLimits(fields.integer_or_none("requests_in_flight"), fields.integer_or_none("tokens_per_s")),
            quota_number=fields.integer("number"),
            quota_unix_s=fields.number("unix_s"),
        )
    except InvalidRequestError as error:
        raise CorruptDataError(f"{fields.what}: {error}") from error


def _quota(fields: Fields, later: Sequence[str]) -> TenantQuota:
    tiers = fields.fields("tiers")
    shares = {_tier(name, fields.what): _share(tiers.fields(name)) for name in tiers.values}
    terms = {name: fields.number(name) for name in ("weight", "max_pinned", *later)}
    return replace(DEFAULT_QUOTA, shares=MappingProxyType(shares), **terms)


def _share(fields: Fields) -> TierShare:
    return TierShare(fields.number("min"), fields.number("max"))


def _tier(name: str, what: str) -> TierKind:
    try:
        return TierKind(name)
    except ValueError as error:
        raise CorruptDataError(f"{what}: there is no tier {name[:32]!r} in this build") from error
