"""Who may still wait: the queue is shared by weight, so that no tenant fills it against others. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cache_store.domain import TenantId

Weight = Callable[[TenantId], float]


def may_wait(tenant: TenantId, num_waiting: Mapping[TenantId, int], weight: Weight, num_max: int) -> bool:
    """Whether one more request of the tenant may wait beside `num_waiting` requests of each tenant.

    Everybody may while the queue has room. Once it is full, only who has less than its part of it: the queue may then
    grow beyond `num_max`, by no more than the parts of those that come later.
    """
    if sum(num_waiting.values()) < num_max:
        return True
    total = sum(weight(other) for other, number in num_waiting.items() if number and other != tenant) + weight(tenant)
    return num_waiting.get(tenant, 0) + 1 <= max(1.0, num_max * weight(tenant) / total)
