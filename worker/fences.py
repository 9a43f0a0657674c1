"""Up to where tenants' caches are purged, as far as this worker knows, and what follows for domains and requests.

It learns so from the published fences of all tenants and, ahead of them, from notices about single ones. An older fence
never takes the place of a newer one, and a tenant that is deleted never comes back. Nothing is refused here: a request
whose domain was purged runs, without reuse, and leaves nothing. Owned by the worker's event loop; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from cache_store.domain import Domain, TenantId
from cache_store.fence import NO_FENCES, Fence, FenceNotice, FenceTable
from cache_store.request_token import RequestClaims

Fences = Mapping[TenantId, Fence | None]
"""New ones by tenant; None: the tenant is deleted."""


def purged(domains: Iterable[Domain], fences: Fences) -> dict[bytes, Domain]:
    """Those of `domains` that their tenants' fences leave behind, by root. Tenants without a new fence keep theirs."""
    gone: dict[bytes, Domain] = {}
    for domain in domains:
        if domain.tenant in fences:
            fence = fences[domain.tenant]
            if fence is None or not fence.is_current(domain):
                gone[domain.root] = domain
    return gone


class FenceBook:
    """The newest fence of each tenant."""

    def __init__(self) -> None:
        self._table = NO_FENCES
        self._ahead: dict[TenantId, FenceNotice] = {}
        """Of tenants about whom the table is older."""
        self._unlisted: dict[TenantId, int] = {}
        """Tenants without a fence that were served, and the newest control data that knew them."""

    @property
    def generation(self) -> int:
        """Of the control data that the published fences are of; 0 before the first."""
        return self._table.generation

    def admits(self, claims: RequestClaims) -> bool:
        """Whether something may be reused or stored for the request.

        A tenant without a fence is deleted, or younger than the table: its router knows control data that are newer.
        """
        tenant = claims.domain.tenant
        fence = self._fence_of(tenant)
        if fence is not None:
            return fence.admits(claims.domain, claims.fence_order)
        if tenant in self._ahead or (self.generation and claims.control_generation <= self.generation):
            return False
        self._unlisted[tenant] = max(claims.control_generation, self._unlisted.get(tenant, 0))
        return True

    def take(self, table: FenceTable) -> Fences:
        """Takes published fences in, which are newer than those before; what is new of them and was not heard of."""
        before, now = self._table.fences, dict(table.fences)
        heard = {tenant: notice.fence for tenant, notice in self._ahead.items()}
        for tenant, fence in before.items():
            if tenant in now and now[tenant].order < fence.order:
                now[tenant] = fence
        self._table = FenceTable(table.generation, MappingProxyType(now))
        new: dict[TenantId, Fence | None] = dict.fromkeys(before.keys() - now.keys())
        new |= {tenant: fence for tenant, fence in now.items() if before.get(tenant) != fence}
        new |= dict.fromkeys(self._take_unlisted())
        self._ahead = {tenant: notice for tenant, notice in self._ahead.items() if self._is_ahead(notice)}
        return {
            tenant: fence
            for tenant, fence in new.items()
            if tenant not in self._ahead and (fence is None or heard.get(tenant) != fence)
        }

    def take_notice(self, notice: FenceNotice) -> Fences:
        """Takes a notice in; what is known of its tenant now, which may be newer."""
        tenant = notice.tenant
        known = self._fence_of(tenant)
        if notice.fence is not None and known is not None:  # two stores that split may each have purged something
            notice = replace(notice, fence=notice.fence.joined(known))
        if self._is_ahead(notice) and not self._is_older(notice, self._ahead.get(tenant)):
            self._ahead[tenant] = notice
        return {tenant: self._fence_of(tenant)}

    def _fence_of(self, tenant: TenantId) -> Fence | None:
        notice = self._ahead.get(tenant)
        return self._table.fences.get(tenant) if notice is None else notice.fence

    def _is_ahead(self, notice: FenceNotice) -> bool:
        """Whether it says more of its tenant than the table does."""
        listed = self._table.fences.get(notice.tenant)
        if listed is None:
            return notice.generation > self._table.generation
        return notice.fence is None or notice.fence.order > listed.order

    def _is_older(self, notice: FenceNotice, known: FenceNotice | None) -> bool:
        if known is None or notice.fence is None:
            return False
        return known.fence is None or notice.fence.order <= known.fence.order

    def _take_unlisted(self) -> list[TenantId]:
        """Tenants that turn out to be deleted; forgets them, and those that are listed by now."""
        table = self._table
        known = [each for each, number in self._unlisted.items() if number <= table.generation or each in table.fences]
        for tenant in known:
            del self._unlisted[tenant]
        return [tenant for tenant in known if tenant not in table.fences]
