"""The health service of a router towards watchers that do not behave."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cluster.valkey import EmbeddedValkey
from services.router.readiness import SERVICE
from tests.support.raw_http2 import unread_call
from tests.support.redis_servers import server_named
from tests.support.router_host import running_cluster

States = health_pb2.HealthCheckResponse


@pytest.mark.timeout(60)
async def test_a_watcher_that_does_not_read_holds_back_nobody(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    question = health_pb2.HealthCheckRequest(service=SERVICE)
    async with running_cluster(server_named(request, "valkey").urls, tmp_path) as cluster:
        stub = health_pb2_grpc.HealthStub(cluster.channel)
        watch = stub.Watch(question, timeout=30.0)
        while (await watch.read()).status != States.SERVING:
            pass
        method = "/grpc.health.v1.Health/Watch"
        async with unread_call(cluster.router.address, method, question.SerializeToString()):
            for _ in range(20):  # until the other watcher is sure to be stuck, nothing tells
                await stub.Check(question, timeout=10.0)
            cluster.router.stop()
            assert (await watch.read()).status == States.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError):  # the router has stopped
                await watch.read()
