"""What a tenant is guaranteed, may have at most, and how it shares what is left: plain values, written for every tier.

Shares are parts of every worker's pool of a tier; the cluster's guarantee is their sum. Knows nothing of pools or of
where quotas are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from cache_store.domain import TenantId
from cache_store.errors import InvalidRequestError, PreconditionError
from cache_store.tier_kind import TierKind

MIN_WEIGHT, MAX_WEIGHT = 0.001, 1_000.0
"""Far smaller ones would lift counters of service to where an ordinary step is lost in rounding."""
ROUNDING = 1e-9
"""What sums of shares may miss by."""


@dataclass(frozen=True, slots=True)
class TierShare:
    """Parts of a tier's pool, 0 to 1. Raises InvalidRequestError."""

    minimum: float = 0.0
    """Guaranteed: never taken for another tenant. Lent while it is not used, unless the tenant is strict."""
    maximum: float = 1.0
    """Never exceeded."""

    def __post_init__(self) -> None:
        for name, value in (("min", self.minimum), ("max", self.maximum)):
            if not (math.isfinite(value) and 0 <= value <= 1):
                raise InvalidRequestError(name, f"{name} is {value}; a share is 0 to 1 (0 % to 100 %)")
        if self.minimum > self.maximum:
            raise InvalidRequestError(
                "min",
                f"min {percent(self.minimum)} is above max {percent(self.maximum)}; lower the one or raise the other",
            )
        if self.maximum == 0:
            raise InvalidRequestError("max", "max is 0: the tenant could not run a single request")

    @property
    def is_strict(self) -> bool:
        """min = max: never lent from, never lent to."""
        return self.minimum == self.maximum

    def guaranteed_blocks(self, num_blocks: int) -> int:
        """Of a pool of `num_blocks`; rounded down, so that the sum of all guarantees fits."""
        return math.floor(self.minimum * num_blocks + ROUNDING)

    def most_blocks(self, num_blocks: int) -> int:
        """Of a pool of `num_blocks`, before others' strict guarantees are taken off; rounded as the guarantee."""
        return math.floor(self.maximum * num_blocks + ROUNDING)


DEFAULT_SHARE = TierShare()
"""Of a tenant without a quota: nothing guaranteed, everything that is free."""


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """The cache quota of one tenant. Raises InvalidRequestError."""

    shares: Mapping[TierKind, TierShare] = field(default_factory=lambda: MappingProxyType({}))
    """A lower tier that is not named has the device's share, the device DEFAULT_SHARE."""
    weight: float = 1.0
    """Part of what is lent, and of the computing time, in proportion to the other tenants' weights."""
    max_pinned: float = 0.1
    """Part of each worker's device pool that pins may keep."""
    audit_share: float = 0.001
    """Part of its cache hits that is checked in idle time."""

    def __post_init__(self) -> None:
        if not MIN_WEIGHT <= self.weight <= MAX_WEIGHT:  # also false for NaN
            raise InvalidRequestError("weight", f"weight is {self.weight}; it is {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
        if not (math.isfinite(self.max_pinned) and 0 <= self.max_pinned <= 1):
            raise InvalidRequestError("max_pinned", f"max_pinned is {self.max_pinned}; a share is 0 to 1")

        if not (math.isfinite(self.audit_share) and 0 <= self.audit_share <= 1):
            raise InvalidRequestError("audit_share", f"audit_share is {self.audit_share}; a share is 0 to 1")

    def share(self, tier: TierKind) -> TierShare:
        """Its share of a tier."""
        return self.shares.get(tier) or self.shares.get(TierKind.DEVICE, DEFAULT_SHARE)

    def max_pinned_blocks(self, num_blocks: int) -> int:
        """Of a device pool of `num_blocks`."""
        return math.floor(self.max_pinned * num_blocks + ROUNDING)


DEFAULT_QUOTA = TenantQuota()


@dataclass(frozen=True, slots=True)
class PoolPart:
    """What one tenant may have of a pool of any size."""

    share: TierShare = DEFAULT_SHARE
    others_strict: tuple[TierShare, ...] = ()
    """Shares that are kept for other tenants, whether they use them or not."""

    def max_blocks(self, num_blocks: int) -> int:
        """Most blocks that it can ever have of `num_blocks`."""
        kept = sum(share.guaranteed_blocks(num_blocks) for share in self.others_strict)
        return min(self.share.most_blocks(num_blocks), num_blocks - kept)


WHOLE_POOL = PoolPart()
"""The part of a tenant without a quota where nobody is strict."""


@dataclass(frozen=True, slots=True)
class QuotaTable:
    """The quotas of all tenants that have one, as of one generation of the control data."""

    generation: int
    quotas: Mapping[TenantId, TenantQuota]

    def of(self, tenant: TenantId) -> TenantQuota:
        """Its quota, or that of tenants without one."""
        return self.quotas.get(tenant, DEFAULT_QUOTA)

    def part(self, tenant: TenantId, tier: TierKind) -> PoolPart:
        """What the tenant may have of the pools of a tier."""
        others = (quota.share(tier) for other, quota in self.quotas.items() if other != tenant)
        return PoolPart(self.of(tenant).share(tier), tuple(share for share in others if share.is_strict))


EMPTY_QUOTAS = QuotaTable(0, MappingProxyType({}))


def guaranteed(quotas: Iterable[TenantQuota], tier: TierKind) -> float:
    """Sum of the guarantees of a tier."""
    return math.fsum(quota.share(tier).minimum for quota in quotas)


def check_sum(quotas: Iterable[TenantQuota]) -> None:
    """Raises PreconditionError where the guarantees of a tier exceed it."""
    known = list(quotas)
    for tier in TierKind:
        total = guaranteed(known, tier)
        if total > 1 + ROUNDING:
            raise PreconditionError(
                f"the guaranteed shares of the {tier} tier add up to {percent(total)}, and there is only 100 %; "
                f"lower a min by at least {percent(total - 1)}"
            )


def check_raise(before: TenantQuota, after: TenantQuota, others: Iterable[TenantQuota]) -> None:
    """Raises PreconditionError where a guarantee grows beyond what the other tenants' leave; says what is free.

    Lowering one is possible whatever the sum is.
    """
    known = list(others)
    for tier in TierKind:
        asked, taken = after.share(tier).minimum, guaranteed(known, tier)
        if asked > before.share(tier).minimum and asked + taken > 1 + ROUNDING:
            raise PreconditionError(
                f"min {percent(asked)} does not fit: the other tenants' guarantees of the {tier} tier add up to "
                f"{percent(taken)}, {percent(max(0.0, 1 - taken))} is free; ask for at most that, or lower another "
                "tenant's min"
            )


def percent(share: float) -> str:
    """A share for readers."""
    return f"{round(share * 100, 3):g} %"
