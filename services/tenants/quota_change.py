"""Changes of a tenant's quota and limits: what is named changes, the rest stays. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from cache_store.quota import DEFAULT_SHARE, TenantQuota, TierShare
from cache_store.tier_kind import TierKind
from services.tenants.model import Tenant, TenantLimits


@dataclass(frozen=True, slots=True)
class ShareChange:
    """Of one tier; None: unchanged."""

    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """None: unchanged."""

    shares: Mapping[TierKind, ShareChange] = field(default_factory=lambda: MappingProxyType({}))
    weight: float | None = None
    max_pinned: float | None = None
    audit_share: float | None = None
    requests_in_flight: int | None = None
    """0: no limit of its own."""
    tokens_per_s: int | None = None
    """0: no limit of its own."""


NO_CHANGE = QuotaChange()


def changed_quota(quota: TenantQuota, change: QuotaChange) -> TenantQuota:
    """The quota after the change. Raises InvalidRequestError."""
    shares = dict(quota.shares)
    for tier, share in change.shares.items():
        shares[tier] = _changed_share(quota.share(tier), share)
    return TenantQuota(
        MappingProxyType({tier: share for tier, share in shares.items() if share != DEFAULT_SHARE}),
        quota.weight if change.weight is None else change.weight,
        quota.max_pinned if change.max_pinned is None else change.max_pinned,
        quota.audit_share if change.audit_share is None else change.audit_share,
    )


def changed_limits(limits: TenantLimits, change: QuotaChange) -> TenantLimits:
    """The limits after the change. Raises InvalidRequestError."""
    return TenantLimits(
        _changed_limit(limits.requests_in_flight, change.requests_in_flight),
        _changed_limit(limits.tokens_per_s, change.tokens_per_s),
    )


def with_terms(tenant: Tenant, change: QuotaChange) -> Tenant:
    """A new tenant with other than the usual quota and limits. Raises InvalidRequestError."""
    quota, limits = changed_quota(tenant.quota, change), changed_limits(tenant.limits, change)
    if (quota, limits) == (tenant.quota, tenant.limits):
        return tenant
    return replace(tenant, quota=quota, limits=limits, quota_number=1, quota_unix_s=tenant.create_unix_s)


def quota_order(tenant: Tenant) -> tuple[object, ...]:
    """Orders different quotas and limits in some way, the same at every router."""
    quota, limits = tenant.quota, tenant.limits
    shares = sorted((tier.value, share.minimum, share.maximum) for tier, share in quota.shares.items())
    own = (quota.weight, quota.max_pinned, quota.audit_share)
    return (shares, *own, limits.requests_in_flight or 0, limits.tokens_per_s or 0)


def _changed_share(share: TierShare, change: ShareChange) -> TierShare:
    return TierShare(
        share.minimum if change.minimum is None else change.minimum,
        share.maximum if change.maximum is None else change.maximum,
    )


def _changed_limit(limit: int | None, change: int | None) -> int | None:
    if change is None:
        return limit
    return None if change == 0 else change
