"""Real gRPC servers on loopback with scripted answers, for whoever tests a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
import pytest
from stemcache.admin.v1 import admin_pb2_grpc
from stemcache.v1 import cache_pb2_grpc, inference_pb2_grpc

from tests.support.scripted_admin import ScriptedAdmin
from tests.support.scripted_api import ScriptedApi


@contextmanager
def _serving(register: Callable[[grpc.Server], None]) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait(timeout=5)


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    """The tenants' API."""
    scripted = ScriptedApi()

    def register(server: grpc.Server) -> None:
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(scripted, server)
        cache_pb2_grpc.add_CacheServiceServicer_to_server(scripted, server)

    with _serving(register) as address:
        scripted.address = address
        yield scripted


@pytest.fixture
def admin() -> Iterator[ScriptedAdmin]:
    """The operator's API."""
    scripted = ScriptedAdmin()

    def register(server: grpc.Server) -> None:
        admin_pb2_grpc.add_TenantAdminServiceServicer_to_server(scripted, server)
        admin_pb2_grpc.add_ClusterServiceServicer_to_server(scripted, server)
        admin_pb2_grpc.add_AdapterServiceServicer_to_server(scripted, server)

    with _serving(register) as address:
        scripted.address = address
        yield scripted
