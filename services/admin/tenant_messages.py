"""Between the control data and the messages of `TenantAdminService`. Holds no state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from google.protobuf.timestamp_pb2 import Timestamp
from stemcache.admin.v1 import admin_pb2 as pb

from cache_store.errors import InvalidRequestError
from cache_store.tier_kind import TierKind
from services.tenants.guarantees import shortfalls
from services.tenants.model import ApiKey, Tenant
from services.tenants.quota_change import QuotaChange, ShareChange
from services.tenants.table import ControlTable


def tenant_message(tenant: Tenant, table: ControlTable) -> pb.Tenant:
    """A tenant without its secret."""
    return tenant_messages([tenant], table)[0]


def tenant_messages(tenants: Iterable[Tenant], table: ControlTable) -> list[pb.Tenant]:
    """Tenants without their secrets."""
    lowered = {(each.tenant_name, each.tier): each.in_force for each in shortfalls(table)}
    num_live_keys = Counter(key.tenant for key in table.keys.values() if not key.revoked)
    return [
        pb.Tenant(
            name=tenant.name,
            uuid=tenant.id,
            create_time=_timestamp(tenant.create_unix_s),
            epoch_time=_timestamp(tenant.epoch_unix_s),
            live_keys=num_live_keys[tenant.id],
            quota=_quota_message(tenant, lowered),
            limits=pb.TenantLimits(
                requests_in_flight=tenant.limits.requests_in_flight or 0, tokens_per_s=tenant.limits.tokens_per_s or 0
            ),
        )
        for tenant in tenants
    ]


def api_key_message(key: ApiKey) -> pb.ApiKey:
    """A key without its secret."""
    return pb.ApiKey(key_id=key.key_id, create_time=_timestamp(key.create_unix_s), revoked=key.revoked)


def quota_change(request: pb.SetTenantQuotaRequest | pb.CreateTenantRequest) -> QuotaChange:
    """What a request wants changed. Raises InvalidRequestError for tiers that are unknown or named twice."""
    return QuotaChange(
        shares=MappingProxyType(_share_changes(request.tiers)),
        weight=request.weight if request.HasField("weight") else None,
        max_pinned=request.max_pinned if request.HasField("max_pinned") else None,
        audit_share=request.audit_share if request.HasField("audit_share") else None,
        requests_in_flight=request.requests_in_flight if request.HasField("requests_in_flight") else None,
        tokens_per_s=request.tokens_per_s if request.HasField("tokens_per_s") else None,
    )


def _quota_message(tenant: Tenant, lowered: Mapping[tuple[str, TierKind], float]) -> pb.TenantQuota:
    shares = [(tier, tenant.quota.share(tier)) for tier in TierKind]
    return pb.TenantQuota(
        tiers=[
            pb.TierShare(
                tier=tier.value,
                min=share.minimum,
                max=share.maximum,
                min_in_force=lowered.get((tenant.name, tier), share.minimum),
            )
            for tier, share in shares
        ],
        weight=tenant.quota.weight,
        max_pinned=tenant.quota.max_pinned,
        audit_share=tenant.quota.audit_share,
    )


def _share_changes(messages: Iterable[pb.TierShare]) -> dict[TierKind, ShareChange]:
    changes: dict[TierKind, ShareChange] = {}
    for message in messages:
        tier = _tier(message.tier)
        if tier in changes:
            raise InvalidRequestError("tiers", f"the {tier} tier is named twice; name each tier once")
        changes[tier] = ShareChange(
            message.min if message.HasField("min") else None, message.max if message.HasField("max") else None
        )
    return changes


def _tier(name: str) -> TierKind:
    try:
        return TierKind(name)
    except ValueError as error:
        known = ", ".join(TierKind)
        raise InvalidRequestError("tiers", f"there is no tier {name[:32]!r}; there is: {known}") from error


def _timestamp(unix_s: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMicroseconds(round(unix_s * 1_000_000))
    return stamp
