"""What a router process is told, and how it is asked whether it serves."""

from __future__ import annotations

from concurrent import futures
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.cluster.router_part import SERVICE, RouterPlan, free_port, is_serving, router_part

STATES = health_pb2.HealthCheckResponse


def _plan(tmp_path: Path) -> RouterPlan:
    return RouterPlan(
        redis_url="unix://router:s3cr3t-1@/s",
        control_redis_url="unix://operator:s3cr3t-2@/s",
        master_key={"STEMCACHE_MASTER_KEY": "s3cr3t-3"},
        admin_token_file=tmp_path / "token",
        listen="127.0.0.1:1",
        admin_listen="127.0.0.1:2",
        models={"m": tmp_path},
        data_dir=tmp_path,
        log=tmp_path / "log",
    )


def test_secrets_are_in_the_environment_and_nowhere_else(tmp_path: Path) -> None:
    plan = _plan(tmp_path)
    part = router_part(plan, {})
    assert "s3cr3t" not in " ".join(part.arguments)
    assert "s3cr3t" not in repr(plan)
    values = plan.environment({}).values()
    assert {"s3cr3t-3", plan.redis_url, plan.control_redis_url} <= set(values)


def test_limits_of_the_surroundings_stay_and_its_master_key_does_not(tmp_path: Path) -> None:
    environ = _plan(tmp_path).environment({"STEMCACHE_MAX_REQUESTS": "5", "STEMCACHE_MASTER_KEY_FILE": "/old"})
    assert environ["STEMCACHE_MAX_REQUESTS"] == "5"
    assert "STEMCACHE_MASTER_KEY_FILE" not in environ
    assert environ["STEMCACHE_MODELS"] == f"m={tmp_path}"


@pytest.mark.parametrize(
    ("state", "expected"), [(STATES.SERVING, True), (STATES.NOT_SERVING, False), (STATES.UNKNOWN, False)]
)
def test_it_serves_when_its_health_says_so(state: STATES.ServingStatus, expected: bool) -> None:
    servicer = health.HealthServicer()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    servicer.set(SERVICE, state)
    assert is_serving(address) is expected
    server.stop(grace=None).wait(timeout=5)


def test_nobody_there_does_not_serve() -> None:
    assert not is_serving(f"127.0.0.1:{free_port('127.0.0.1')}")


def test_a_free_port_is_none_that_whoever_connects_is_given() -> None:
    ports = {free_port("127.0.0.1") for _ in range(20)}
    assert len(ports) > 10
    assert max(ports) < 32_768
    with pytest.raises(OSError, match="assign"):
        free_port("192.0.2.1")
