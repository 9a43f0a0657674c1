"""Questions for what was used as messages."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp
from stemcache.admin.v1 import usage_pb2 as admin_pb
from stemcache.v1 import usage_pb2 as pb


def usage_message(since_unix_s: float | None, until_unix_s: float | None) -> pb.GetUsageRequest:
    """Of the calling tenant; None: no bound."""
    return pb.GetUsageRequest(since_time=_point(since_unix_s), until_time=_point(until_unix_s))


def admin_usage_message(
    tenant: str, since_unix_s: float | None, until_unix_s: float | None
) -> admin_pb.GetUsageRequest:
    """Of a tenant or, where the name is empty, of all."""
    since, until = _point(since_unix_s), _point(until_unix_s)
    return admin_pb.GetUsageRequest(tenant=tenant, since_time=since, until_time=until, by_hour=True)


def _point(unix_s: float | None) -> Timestamp | None:
    if unix_s is None:
        return None
    message = Timestamp()
    message.FromNanoseconds(round(unix_s * 1e9))
    return message
