"""UsageService for the operator: what tenants have used, and what more room would bring them. Reads only.

Who may call it is decided before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import grpc
from stemcache.admin.v1 import usage_pb2 as pb
from stemcache.admin.v1.usage_pb2_grpc import UsageServiceServicer

from cache_store.domain import TenantId
from cache_store.errors import StemcacheError, UnavailableError
from cache_store.meter_store import MeterNames, MeterUnavailableError
from cache_store.metered import Metered
from services.router.quota_advice import AdvicePoint, QuotaAdvisor
from services.router.statuses import abort_with
from services.router.usage_messages import hour_start, usage_counts
from services.router.usage_reports import RETRY_AFTER_S, Usage, UsageReports
from services.router.usage_servicer import point_of
from services.tenants.directory import TenantDirectory

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # in quotes: a generic to the type checker only


class AdminUsageServicer(UsageServiceServicer):
    """The service."""

    def __init__(
        self, directory: TenantDirectory, reports: UsageReports, advisor: QuotaAdvisor, names: MeterNames
    ) -> None:
        """`names`: of deleted tenants."""
        self._directory = directory
        self._names = names
        self._reports = reports
        self._advisor = advisor

    async def GetUsage(self, request: pb.GetUsageRequest, context: Context) -> pb.GetUsageResponse:
        try:
            found = await self._find(request)
            names = await self._called(found)
        except StemcacheError as error:
            await abort_with(context, error)
        named = sorted(((names[tenant], usage) for tenant, usage in found.items()), key=lambda each: each[0])
        total: Counter[Metered] = sum((usage.total for _, usage in named), start=Counter())
        return pb.GetUsageResponse(
            tenants=[_tenant_usage(name, usage.total, usage.hours if request.by_hour else {}) for name, usage in named],
            total=usage_counts(total),
            total_evictions=_evictions(total),
        )

    async def AdviseQuota(self, request: pb.AdviseQuotaRequest, context: Context) -> pb.AdviseQuotaResponse:
        try:
            advice = await self._advisor.advise(self._directory.tenant_by_name(request.tenant))
        except StemcacheError as error:
            await abort_with(context, error)
        return pb.AdviseQuotaResponse(
            base=_point(advice.base),
            guaranteed=advice.is_guaranteed,
            used_share=advice.used_share,
            points=[_point(each) for each in advice.points],
            enough=_point(advice.enough),
            asked_blocks=advice.asked_blocks,
            workers=advice.num_workers,
            missing_workers=advice.num_missing,
            found_share=advice.found_share,
        )

    async def _find(self, request: pb.GetUsageRequest) -> Mapping[TenantId, Usage]:
        since = point_of(request.since_time) if request.HasField("since_time") else None
        until = point_of(request.until_time) if request.HasField("until_time") else None
        span = self._reports.span(since, until)
        if not request.tenant:
            return await self._reports.all(span)
        tenant = self._directory.tenant_by_name(request.tenant).id
        return {tenant: await self._reports.of(tenant, span)}

    async def _called(self, found: Collection[TenantId]) -> Mapping[TenantId, str]:
        """Names; of a tenant that does not live, the one it had and its id, or the id alone."""
        living = {each: tenant.name for each in found if (tenant := self._directory.tenant_by_id(each))}
        gone = [each for each in found if each not in living]
        try:
            kept = await self._names.of(gone)
        except MeterUnavailableError as error:
            raise UnavailableError(f"usage cannot be read now: {error}", RETRY_AFTER_S) from error
        return living | {each: f"{kept[each]} (deleted, {each})" if each in kept else each for each in gone}


def _tenant_usage(name: str, total: Counter[Metered], hours: Mapping[int, Counter[Metered]]) -> pb.TenantUsage:
    return pb.TenantUsage(
        tenant=name,
        counts=usage_counts(total),
        evictions=_evictions(total),
        hours=[
            pb.TenantUsageHour(start_time=hour_start(hour), counts=usage_counts(counts), evictions=_evictions(counts))
            for hour, counts in hours.items()
        ],
    )


def _point(point: AdvicePoint) -> pb.QuotaPoint:
    return pb.QuotaPoint(share=point.share, blocks=point.num_blocks, hit_share=point.hit_share)


def _evictions(counts: Counter[Metered]) -> pb.EvictionCounts:
    return pb.EvictionCounts(
        evicted_blocks=counts[Metered.EVICTED],
        suffered_blocks=counts[Metered.EVICTED_FOR_OTHERS],
        caused_blocks=counts[Metered.CAUSED],
    )
