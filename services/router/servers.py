"""The gRPC servers of a router: for tenants, the operator and probes. Knows what each port offers and its bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from stemcache.admin.v1 import admin_pb2, admin_pb2_grpc
from stemcache.admin.v1 import usage_pb2 as admin_usage_pb2
from stemcache.admin.v1 import usage_pb2_grpc as admin_usage_pb2_grpc
from stemcache.v1 import cache_pb2_grpc, inference_pb2_grpc, usage_pb2_grpc

from services.admin.adapter_servicer import AdapterServicer
from services.admin.auth import AdminAuthInterceptor
from services.admin.cluster_servicer import ClusterServicer
from services.admin.tenant_servicer import TenantServicer
from services.admin.usage_servicer import AdminUsageServicer
from services.router.cache_servicer import CacheServicer
from services.router.health import Health
from services.router.readiness import TENANT_SERVICES
from services.router.servicer import InferenceServicer
from services.router.usage_servicer import UsageServicer
from services.settings import RouterLimits

_ADMIN_MESSAGE_BYTES = 64 << 20
_HEALTH_MESSAGE_BYTES = 4 << 10
_HEALTH_CALLS = 64
_CALLS_IN_REFUSAL = 1_024
"""Calls beyond what may run: on their way to a refusal, and those of health and reflection."""

_ADMIN_SERVICES: tuple[str, ...] = tuple(
    service.full_name
    for file in (admin_pb2.DESCRIPTOR, admin_usage_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
)


def public_server(
    inference: InferenceServicer,
    cache: CacheServicer,
    usage: UsageServicer,
    gate: grpc.aio.ServerInterceptor,
    health_servicer: Health,
    limits: RouterLimits,
) -> grpc.aio.Server:
    """Tenants' port: inference, cache, usage, health, reflection."""
    server = grpc.aio.server(
        interceptors=[gate],
        options=_options(limits.max_message_bytes),
        maximum_concurrent_rpcs=limits.max_calls + _CALLS_IN_REFUSAL,
    )
    services: Any = _ByName(server)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, services)
    cache_pb2_grpc.add_CacheServiceServicer_to_server(cache, services)
    usage_pb2_grpc.add_UsageServiceServicer_to_server(usage, services)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, services)
    described = reflection.aio.ReflectionServicer((*TENANT_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(described, services)
    return server


class _ByName:
    """Takes a server's services for it, so that their methods are found by name alone.

    For a method that is registered too, grpc.aio keeps a task waiting for its next call, and goes over all these tasks
    at every call: with twenty methods a tenth of what a call costs.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """They find their methods by name."""
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """The same once more."""


def admin_server(
    tenants: TenantServicer,
    cluster: ClusterServicer,
    adapters: AdapterServicer,
    usage: AdminUsageServicer,
    admin_token: str,
) -> grpc.aio.Server:
    """The operator's port: tenants, cluster, adapters, usage, health, reflection; all of it behind the admin token."""
    server = grpc.aio.server(interceptors=[AdminAuthInterceptor(admin_token)], options=_options(_ADMIN_MESSAGE_BYTES))
    admin_pb2_grpc.add_TenantAdminServiceServicer_to_server(tenants, server)
    admin_pb2_grpc.add_ClusterServiceServicer_to_server(cluster, server)
    admin_pb2_grpc.add_AdapterServiceServicer_to_server(adapters, server)
    admin_usage_pb2_grpc.add_UsageServiceServicer_to_server(usage, server)
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    reflection.enable_server_reflection((*_ADMIN_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server


def health_server(health_servicer: Health) -> grpc.aio.Server:
    """For probes, which speak no TLS and have no key: health and nothing else."""
    server = grpc.aio.server(options=_options(_HEALTH_MESSAGE_BYTES), maximum_concurrent_rpcs=_HEALTH_CALLS)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    return server


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", 1_000),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]
