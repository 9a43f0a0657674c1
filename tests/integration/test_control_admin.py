"""The tenant part of the operator's API: gRPC on loopback over a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from redis.asyncio import Redis
from stemcache.admin.v1 import admin_pb2 as pb
from stemcache.admin.v1.admin_pb2_grpc import TenantAdminServiceStub, add_TenantAdminServiceServicer_to_server

from cache_store.errors import InvalidRequestError, UnauthenticatedError
from cache_store.memory_meter import MemoryMeterNames
from cache_store.tier_kind import TierKind
from services.admin.auth import AdminAuthInterceptor
from services.admin.tenant_servicer import TenantServicer
from services.tenants.quota_change import QuotaChange, ShareChange
from services.tenants.redis_store import CONTROL_KEY
from tests.support.control import RouterControl, operator_client, raw_control, roll_back
from tests.support.purge_bench import PurgeBench, purge_bench, scripted_workers
from tests.support.redis_servers import RedisServer

TOKEN = "an-admin-token-of-tests"
OPERATOR = (("authorization", f"Bearer {TOKEN}"),)


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with operator_client(redis_server) as client:
        yield client


@pytest.fixture
async def bench(redis: Redis, tmp_path: Path) -> AsyncIterator[PurgeBench]:
    async with purge_bench(redis, tmp_path / "a") as made:
        yield made


@pytest.fixture
def router(bench: PurgeBench) -> RouterControl:
    return bench.control


@pytest.fixture
async def channel(bench: PurgeBench) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server(interceptors=[AdminAuthInterceptor(TOKEN)])
    servicer = TenantServicer(bench.control.store, bench.control.sync, bench.purges, MemoryMeterNames())
    add_TenantAdminServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened
    await server.stop(None)


class Operator:
    """Calls with the operator's token."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = TenantAdminServiceStub(channel)

    async def __call__(self, method: str, request: Any) -> Any:
        return await getattr(self._stub, method)(request, metadata=OPERATOR, timeout=10)


@pytest.fixture
def operator(channel: grpc.aio.Channel) -> Operator:
    return Operator(channel)


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


async def test_a_made_key_works_at_this_router_as_soon_as_it_is_answered(
    operator: Operator, router: RouterControl
) -> None:
    made = (await operator("CreateTenant", pb.CreateTenantRequest(name="acme"))).tenant
    key = await operator("CreateApiKey", pb.CreateApiKeyRequest(tenant="acme"))
    assert router.directory.authenticate(key.secret).id == made.uuid
    await operator("RevokeApiKey", pb.RevokeApiKeyRequest(key_id=key.key.key_id))
    with pytest.raises(UnauthenticatedError):
        router.directory.authenticate(key.secret)


async def test_lists_show_what_there_is(operator: Operator, router: RouterControl) -> None:
    for name in ("globex", "acme"):
        await operator("CreateTenant", pb.CreateTenantRequest(name=name))
    first = await operator("CreateApiKey", pb.CreateApiKeyRequest(tenant="acme"))
    router.clock.advance(1)
    second = await operator("CreateApiKey", pb.CreateApiKeyRequest(tenant="acme"))
    await operator("RevokeApiKey", pb.RevokeApiKeyRequest(key_id=first.key.key_id))

    tenants = (await operator("ListTenants", pb.ListTenantsRequest())).tenants
    assert [(tenant.name, tenant.live_keys) for tenant in tenants] == [("acme", 1), ("globex", 0)]
    assert tenants[0].create_time.ToSeconds() == router.clock.unix_s() - 1
    keys = (await operator("ListApiKeys", pb.ListApiKeysRequest(tenant="acme"))).keys
    assert [(key.key_id, key.revoked) for key in keys] == [(first.key.key_id, True), (second.key.key_id, False)]
    assert first.secret not in str(keys)


async def test_a_rotation_is_in_force_as_soon_as_it_is_answered(operator: Operator, router: RouterControl) -> None:
    await operator("CreateTenant", pb.CreateTenantRequest(name="acme"))
    before = router.directory.tenant_by_name("acme")
    router.clock.advance(5)
    answer = await operator("RotateEpoch", pb.RotateEpochRequest(tenant="acme"))
    after = router.directory.tenant_by_name("acme")
    assert after.epoch != before.epoch
    assert answer.tenant.epoch_time.ToSeconds() == answer.tenant.create_time.ToSeconds() + 5


async def test_a_quota_is_set_in_parts_and_listed(operator: Operator, router: RouterControl) -> None:
    await operator("CreateTenant", pb.CreateTenantRequest(name="acme", weight=2.0))
    shares = [pb.TierShare(tier="device", min=0.25)]
    await operator("SetTenantQuota", pb.SetTenantQuotaRequest(tenant="acme", tiers=shares, tokens_per_s=900))
    answer = await operator("SetTenantQuota", pb.SetTenantQuotaRequest(tenant="acme", max_pinned=0.0))
    answer = await operator("SetTenantQuota", pb.SetTenantQuotaRequest(tenant="acme", audit_share=0.5))
    (listed,) = (await operator("ListTenants", pb.ListTenantsRequest())).tenants
    assert listed == answer.tenant
    assert listed.quota == pb.TenantQuota(
        tiers=[pb.TierShare(tier=tier, min=0.25, max=1.0, min_in_force=0.25) for tier in ("device", "host", "disk")],
        weight=2.0,
        max_pinned=0.0,
        audit_share=0.5,
    )
    assert listed.limits == pb.TenantLimits(tokens_per_s=900)
    assert router.directory.tenant_by_name("acme").limits.tokens_per_s == 900


async def test_a_guarantee_that_is_not_in_force_is_listed_as_such(
    operator: Operator, router: RouterControl, redis: Redis, tmp_path: Path
) -> None:
    other = RouterControl(redis, tmp_path / "other")
    await other.store.create_tenant("globex", QuotaChange({TierKind.DEVICE: ShareChange(0.75)}))
    await other.sync.sync_once()
    await redis.delete(CONTROL_KEY)
    router.clock.advance(5)
    await operator("CreateTenant", pb.CreateTenantRequest(name="acme", tiers=[pb.TierShare(tier="device", min=0.5)]))
    await other.sync.sync_once()
    tenants = (await operator("ListTenants", pb.ListTenantsRequest())).tenants
    shares = [(each.name, each.quota.tiers[0].min, each.quota.tiers[0].min_in_force) for each in tenants]
    assert shares == [("acme", 0.5, 0.25), ("globex", 0.75, 0.75)]


async def test_export_and_import_over_the_api(operator: Operator, redis: Redis) -> None:
    await operator("CreateTenant", pb.CreateTenantRequest(name="acme"))
    await operator("CreateApiKey", pb.CreateApiKeyRequest(tenant="acme"))
    document = (await operator("ExportTenants", pb.ExportTenantsRequest())).document
    await operator("DeleteTenant", pb.DeleteTenantRequest(name="acme"))
    ended = await operator("ImportTenants", pb.ImportTenantsRequest(document=document))
    assert (ended.tenants, ended.keys) == (0, 0)
    assert not (await operator("ListTenants", pb.ListTenantsRequest())).tenants


async def test_an_import_into_an_empty_cluster(operator: Operator, redis: Redis, tmp_path: Path) -> None:
    other = RouterControl(redis, tmp_path / "other")
    await other.store.create_tenant("acme")
    key = (await other.store.create_key("acme")).value.text
    document = await other.store.export_document()
    await redis.delete(CONTROL_KEY)
    done = await operator("ImportTenants", pb.ImportTenantsRequest(document=document))
    assert (done.tenants, done.keys) == (1, 1)
    await other.sync.sync_once()
    assert other.directory.authenticate(key).name == "acme"


async def test_a_write_puts_a_rolled_back_store_right_first(operator: Operator, redis: Redis) -> None:
    await operator("CreateTenant", pb.CreateTenantRequest(name="acme"))
    old = await raw_control(redis)
    await operator("CreateTenant", pb.CreateTenantRequest(name="globex"))
    await roll_back(redis, old)
    code, _ = await failure(operator("CreateTenant", pb.CreateTenantRequest(name="globex")))
    assert code is grpc.StatusCode.ALREADY_EXISTS


@pytest.mark.parametrize(
    ("method", "request_", "code", "says"),
    [
        ("CreateTenant", pb.CreateTenantRequest(), grpc.StatusCode.INVALID_ARGUMENT, "lower case letters"),
        ("CreateTenant", pb.CreateTenantRequest(name="acme"), grpc.StatusCode.ALREADY_EXISTS, "acme"),
        ("DeleteTenant", pb.DeleteTenantRequest(name="x"), grpc.StatusCode.NOT_FOUND, "tenants list"),
        ("CreateApiKey", pb.CreateApiKeyRequest(tenant="x"), grpc.StatusCode.NOT_FOUND, "tenants list"),
        ("CreateApiKey", pb.CreateApiKeyRequest(tenant="acme"), grpc.StatusCode.FAILED_PRECONDITION, "revoke one"),
        ("ListApiKeys", pb.ListApiKeysRequest(tenant="x"), grpc.StatusCode.NOT_FOUND, "tenants list"),
        ("RevokeApiKey", pb.RevokeApiKeyRequest(key_id="x"), grpc.StatusCode.NOT_FOUND, "tenants keys"),
        ("RotateEpoch", pb.RotateEpochRequest(tenant="x"), grpc.StatusCode.NOT_FOUND, "tenants list"),
        ("SetTenantQuota", pb.SetTenantQuotaRequest(tenant="x", weight=2), grpc.StatusCode.NOT_FOUND, "tenants list"),
        (
            "SetTenantQuota",
            pb.SetTenantQuotaRequest(tenant="acme", tiers=[pb.TierShare(tier="moon", min=0.1)]),
            grpc.StatusCode.INVALID_ARGUMENT,
            "there is no tier 'moon'; there is: device",
        ),
        (
            "SetTenantQuota",
            pb.SetTenantQuotaRequest(tenant="acme", tiers=[pb.TierShare(tier="device")] * 2),
            grpc.StatusCode.INVALID_ARGUMENT,
            "named twice",
        ),
        (
            "SetTenantQuota",
            pb.SetTenantQuotaRequest(tenant="acme", tiers=[pb.TierShare(tier="device", max=0.0)]),
            grpc.StatusCode.INVALID_ARGUMENT,
            "max is 0",
        ),
        (
            "SetTenantQuota",
            pb.SetTenantQuotaRequest(tenant="acme", tiers=[pb.TierShare(tier="device", min=0.25)]),
            grpc.StatusCode.FAILED_PRECONDITION,
            "20 % is free",
        ),
        (
            "CreateTenant",
            pb.CreateTenantRequest(name="globex", tiers=[pb.TierShare(tier="device", min=0.25)]),
            grpc.StatusCode.FAILED_PRECONDITION,
            "20 % is free",
        ),
        (
            "ImportTenants",
            pb.ImportTenantsRequest(document=b"x"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "as it was exported",
        ),
    ],
)
async def test_bad_requests_get_their_status(
    operator: Operator, redis: Redis, method: str, request_: Any, code: grpc.StatusCode, says: str
) -> None:
    await operator("CreateTenant", pb.CreateTenantRequest(name="acme"))
    await operator("CreateTenant", pb.CreateTenantRequest(name="rich", tiers=[pb.TierShare(tier="device", min=0.8)]))
    for _ in range(2):
        await operator("CreateApiKey", pb.CreateApiKeyRequest(tenant="acme"))
    before = await raw_control(redis)
    found_code, message = await failure(operator(method, request_))
    assert found_code is code
    assert says in message
    assert await raw_control(redis) == before


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", TOKEN),),
        (("authorization", "Bearer "),),
        (("authorization", f"Bearer {TOKEN}x"),),
        (("authorization", f"Basic {TOKEN}"),),
        (("authorization", "Bearer wrong"), ("authorization", f"Bearer {TOKEN}")),
        (("admin-token", TOKEN),),
    ],
)
async def test_without_the_token_nothing_is_done(
    channel: grpc.aio.Channel, operator: Operator, metadata: tuple[tuple[str, str], ...]
) -> None:
    stub: Any = TenantAdminServiceStub(channel)
    code, message = await failure(stub.CreateTenant(pb.CreateTenantRequest(name="acme"), metadata=metadata, timeout=10))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert TOKEN not in message
    assert not (await operator("ListTenants", pb.ListTenantsRequest())).tenants


async def test_a_method_that_does_not_exist_is_told_to_the_operator_only(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary("/stemcache.admin.v1.TenantAdminService/Nothing")
    assert (await failure(call(b"", timeout=10)))[0] is grpc.StatusCode.UNAUTHENTICATED
    assert (await failure(call(b"", metadata=OPERATOR, timeout=10)))[0] is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("token", ["", "short", "a token with ünicode in it", "a-token-with\na-line-break"])
def test_a_token_that_cannot_protect_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequestError, match="openssl"):
        AdminAuthInterceptor(token)


@pytest.mark.parametrize("scope", [{"everything": True}, {"partition": ""}, {"partition": "p"}, {"model": "m"}])
async def test_a_purge_answers_with_a_receipt_worker_by_worker(
    operator: Operator, bench: PurgeBench, scope: dict[str, Any]
) -> None:
    await operator("CreateTenant", pb.CreateTenantRequest(name="acme"))
    async with scripted_workers("acknowledges", "refuses") as (records, _):
        await bench.see(*records)
        request = pb.PurgeTenantCacheRequest(tenant="acme", **scope)
        receipt = (await operator("PurgeTenantCache", request)).receipt
    told, silent = receipt.workers
    assert (told.worker_id, told.incarnation, told.acknowledged, told.held_blocks) == ("w0", "w0", True, 1)
    assert (told.purged_blocks.device_blocks, told.purged_blocks.disk_blocks, told.error) == (5, 2, "")
    assert (silent.acknowledged, silent.error) == (False, "the worker failed with INTERNAL")
    assert receipt.control_generation == bench.control.directory.generation == 2
    assert receipt.complete_time.ToSeconds() == receipt.purge_time.ToSeconds() + 10


@pytest.mark.parametrize(
    ("scope", "code", "says"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "set everything, partition or model"),
        ({"everything": False}, grpc.StatusCode.INVALID_ARGUMENT, "set it to true"),
        ({"model": ""}, grpc.StatusCode.INVALID_ARGUMENT, "model is empty"),
        ({"partition": "é" * 129}, grpc.StatusCode.INVALID_ARGUMENT, "partition"),
        ({"model": "typo"}, grpc.StatusCode.NOT_FOUND, "'typo'"),
    ],
)
async def test_a_purge_of_nothing_is_refused(
    operator: Operator, router: RouterControl, scope: dict[str, Any], code: grpc.StatusCode, says: str
) -> None:
    await operator("CreateTenant", pb.CreateTenantRequest(name="acme"))
    found, told = await failure(operator("PurgeTenantCache", pb.PurgeTenantCacheRequest(tenant="acme", **scope)))
    assert found is code
    assert says in told
    assert router.directory.generation == 1


async def test_an_unknown_tenant_cannot_be_purged(operator: Operator) -> None:
    request = pb.PurgeTenantCacheRequest(tenant="nobody", everything=True)
    code, says = await failure(operator("PurgeTenantCache", request))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "'nobody'" in says
