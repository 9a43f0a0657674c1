"""UsageService for tenants: what the caller has used, and nobody else. Every error leaves through the status table."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp
from stemcache.v1 import usage_pb2 as pb
from stemcache.v1.usage_pb2_grpc import UsageServiceServicer

from services.router.tenant_method import Context, for_tenant
from services.router.usage_messages import hour_start, usage_counts
from services.router.usage_reports import UsageReports
from services.tenants.directory import TenantDirectory
from services.tenants.model import Tenant


class UsageServicer(UsageServiceServicer):
    """The service by which tenants see what they used."""

    def __init__(self, directory: TenantDirectory, reports: UsageReports) -> None:
        self.directory = directory
        """Knows who is calling."""
        self._reports = reports

    @for_tenant
    async def GetUsage(self, tenant: Tenant, request: pb.GetUsageRequest, context: Context) -> pb.GetUsageResponse:
        since = point_of(request.since_time) if request.HasField("since_time") else None
        until = point_of(request.until_time) if request.HasField("until_time") else None
        usage = await self._reports.of(tenant.id, self._reports.span(since, until))
        return pb.GetUsageResponse(
            total=usage_counts(usage.total),
            hours=[
                pb.UsageHour(start_time=hour_start(hour), counts=usage_counts(counts))
                for hour, counts in usage.hours.items()
            ],
        )


def point_of(message: Timestamp) -> float:
    """Seconds since 1970; whatever the fields are, no error."""
    return message.seconds + message.nanos / 1e9
