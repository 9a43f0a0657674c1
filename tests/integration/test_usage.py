"""What tenants have used, on whole clusters: answers, bills and workers agree, whatever happens to them."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from stemcache.admin.v1 import admin_pb2
from stemcache.admin.v1 import usage_pb2 as admin_pb
from stemcache.admin.v1 import usage_pb2_grpc as admin_usage_grpc
from stemcache.v1 import inference_pb2 as pb
from stemcache.v1 import usage_pb2, usage_pb2_grpc

from cache_store.clock import SystemClock
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from services.tenants.master_key import cluster_key
from tests.support.outages import end
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    ADMIN_METADATA,
    MASTER,
    Cluster,
    Tenant,
    eventually_async,
    router_settings,
    running,
    running_cluster,
    tokens_request,
)
from tests.support.worker_process import worker_process
from worker.config import NumBlocks

Code = grpc.StatusCode


@pytest.fixture
def urls(request: pytest.FixtureRequest, valkey: EmbeddedValkey) -> RoleUrls:
    return server_named(request, "valkey").urls


@dataclass
class Told:
    """What a tenant was told of its requests."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    completed: int = 0
    cancelled: int = 0
    refused: int = 0

    def take(self, answer: pb.GenerateResponse) -> None:
        self.prompt += answer.usage.prompt_tokens
        self.cached += answer.usage.cached_tokens
        self.generated += answer.usage.completion_tokens
        self.completed += 1


def agrees(counts: usage_pb2.UsageCounts, told: Told) -> bool:
    requests = counts.requests
    return (
        (counts.prompt_tokens, counts.cached_tokens, counts.generated_tokens)
        == (told.prompt, told.cached, told.generated)
        and counts.computed_tokens == told.prompt - told.cached
        and (requests.completed, requests.cancelled, requests.refused) == (told.completed, told.cancelled, told.refused)
        and requests.failed == 0
    )


async def report_of(address: str, **fields: Any) -> admin_pb.GetUsageResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = admin_usage_grpc.UsageServiceStub(channel)
        request = admin_pb.GetUsageRequest(**fields)
        response: admin_pb.GetUsageResponse = await stub.GetUsage(request, timeout=10.0, metadata=ADMIN_METADATA)
    return response


async def own_usage(cluster: Cluster, tenant: Tenant) -> usage_pb2.GetUsageResponse:
    stub: Any = usage_pb2_grpc.UsageServiceStub(cluster.channel)
    response: usage_pb2.GetUsageResponse = await stub.GetUsage(
        usage_pb2.GetUsageRequest(), timeout=10.0, metadata=tenant.metadata
    )
    return response


def adds_up(report: admin_pb.GetUsageResponse) -> bool:
    """The tenants' counts are together the total's."""
    number = ("prompt_tokens", "cached_tokens", "computed_tokens", "generated_tokens", "recomputed_tokens")
    same = all(sum(getattr(t.counts, name) for t in report.tenants) == getattr(report.total, name) for name in number)
    caused = sum(tenant.evictions.caused_blocks for tenant in report.tenants)
    suffered = sum(tenant.evictions.suffered_blocks for tenant in report.tenants)
    return same and caused == suffered == report.total_evictions.caused_blocks


@dataclass
class Bench:
    """A cluster, and what its tenants were told."""

    cluster: Cluster
    told: dict[str, Told] = field(default_factory=dict)

    def of(self, tenant: Tenant) -> Told:
        return self.told.setdefault(tenant.name, Told())

    async def ask(self, tenant: Tenant, first: int, length: int = 80, **fields: Any) -> pb.GenerateResponse:
        answer = await tenant.generate(tokens_request(range(first, first + length), **fields))
        self.of(tenant).take(answer)
        return answer

    async def check(self, address: str = "") -> admin_pb.GetUsageResponse:
        """Waits until the bills say what tenants were told; then nothing more may come."""
        found: list[admin_pb.GetUsageResponse] = []

        async def settled() -> bool:
            found[:] = [await report_of(address or self.cluster.router.admin_address)]
            counts = {each.tenant: each.counts for each in found[0].tenants}
            return all(agrees(counts.get(name, usage_pb2.UsageCounts()), told) for name, told in self.told.items())

        await eventually_async(settled)
        assert adds_up(found[0])
        return found[0]


@pytest.fixture
async def bench(urls: RoleUrls, tmp_path: Path) -> AsyncIterator[Bench]:
    async with running_cluster(urls, tmp_path, ({"digest_step_s": 0.002}, {"digest_step_s": 0.002})) as cluster:
        yield Bench(cluster)


async def test_bills_say_what_the_answers_said(bench: Bench) -> None:
    acme, globex = bench.cluster.acme, bench.cluster.globex
    for _ in range(3):
        await bench.ask(acme, 100, max_tokens=5)
        await bench.ask(globex, 100, max_tokens=3, n=2, temperature=1.0)
    report = await bench.check()
    assert bench.told["acme"].cached > 0
    assert [each.tenant for each in report.tenants] == ["acme", "globex"]
    assert report.total.saved_s >= 0


async def test_a_retry_is_billed_once(bench: Bench) -> None:
    acme = bench.cluster.acme
    request = tokens_request(range(100, 180), request_id="r", max_tokens=60, temperature=1.0)
    first, second = await asyncio.gather(acme.generate(request), acme.generate(request))
    assert await acme.generate(request) == first == second
    bench.of(acme).take(first)
    await bench.check()


async def test_of_a_cancelled_request_is_billed_what_came(bench: Bench) -> None:
    acme = bench.cluster.acme
    stream = acme.stream(tokens_request(range(100, 180), request_id="r", max_tokens=3_000))
    told, started = bench.of(acme), (await stream.read()).started
    told.prompt, told.cached = started.usage.prompt_tokens, started.usage.cached_tokens
    for _ in range(20):
        await stream.read()
    assert await acme.cancel("r")
    while await stream.read() is not grpc.aio.EOF:
        pass
    await bench.cluster.nothing_left()
    record = await bench.cluster.record(acme, "r")
    told.generated, told.cancelled = record.completion_tokens, 1
    assert told.generated >= 20
    await bench.check()


async def test_what_is_refused_costs_nothing_and_is_counted(bench: Bench) -> None:
    acme = bench.cluster.acme
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await acme.generate(tokens_request([], max_tokens=1))
        assert error.value.code() is Code.INVALID_ARGUMENT
    bench.of(acme).refused = 2
    await bench.ask(acme, 100)
    await bench.check()


async def test_a_tenant_sees_its_own_use_and_no_other(bench: Bench) -> None:
    acme, globex = bench.cluster.acme, bench.cluster.globex
    await bench.ask(acme, 100, max_tokens=7)
    await bench.check()
    mine, theirs = await own_usage(bench.cluster, acme), await own_usage(bench.cluster, globex)
    assert mine.total.generated_tokens == 7
    assert [hour.counts.prompt_tokens for hour in mine.hours] == [80]
    assert theirs == usage_pb2.GetUsageResponse(total=theirs.total)
    assert theirs.total.prompt_tokens == theirs.total.requests.completed == 0
    stub: Any = usage_pb2_grpc.UsageServiceStub(bench.cluster.channel)
    for metadata in ((), ADMIN_METADATA, (("authorization", "Bearer sc-none"),)):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.GetUsage(usage_pb2.GetUsageRequest(), timeout=10.0, metadata=metadata)
        assert error.value.code() is Code.UNAUTHENTICATED


async def test_the_operator_alone_sees_all_and_an_unknown_name_is_not_found(bench: Bench) -> None:
    await bench.ask(bench.cluster.acme, 100)
    one = await report_of(bench.cluster.router.admin_address, tenant="acme", by_hour=True)
    assert [each.tenant for each in one.tenants] == ["acme"]
    assert one.tenants[0].hours[0].counts == one.tenants[0].counts
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await report_of(bench.cluster.router.admin_address, tenant="nobody")
    assert error.value.code() is Code.NOT_FOUND
    async with grpc.aio.insecure_channel(bench.cluster.router.admin_address) as channel:
        stub: Any = admin_usage_grpc.UsageServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.GetUsage(admin_pb.GetUsageRequest(), timeout=10.0, metadata=bench.cluster.acme.metadata)
        assert error.value.code() is Code.UNAUTHENTICATED


async def test_a_deleted_tenant_is_still_called_by_its_name(bench: Bench) -> None:
    await bench.ask(bench.cluster.globex, 100)
    await bench.check()
    request = admin_pb2.DeleteTenantRequest(name="globex")
    await bench.cluster.tenant_admin.DeleteTenant(request, timeout=10.0, metadata=ADMIN_METADATA)
    report = await report_of(bench.cluster.router.admin_address)
    [shown] = [each for each in report.tenants if "globex" in each.tenant]
    assert re.fullmatch(r"globex \(deleted, [0-9a-f-]{36}\)", shown.tenant)
    assert shown.counts.prompt_tokens == bench.of(bench.cluster.globex).prompt


async def test_blocks_are_paid_by_the_time_for_which_they_are_kept(bench: Bench) -> None:
    acme = bench.cluster.acme
    await bench.ask(acme, 100, length=160)

    async def held() -> bool:
        counts = (await own_usage(bench.cluster, acme)).total
        return counts.block_seconds.device_block_s > 5

    await eventually_async(held)
    report = await bench.check()
    by_tenant = {each.tenant: each.counts.block_seconds.device_block_s for each in report.tenants}
    assert by_tenant.pop("acme") == pytest.approx(report.total.block_seconds.device_block_s)
    assert not any(by_tenant.values())


async def test_bills_outlive_routers_and_any_router_tells_them(bench: Bench, urls: RoleUrls, tmp_path: Path) -> None:
    acme, globex = bench.cluster.acme, bench.cluster.globex
    await bench.ask(acme, 100)
    await bench.ask(globex, 100)
    await bench.check()
    async with running(router_settings(urls, tmp_path / "second"), SystemClock()) as other:
        async with grpc.aio.insecure_channel(other.address) as channel:
            there = Tenant("acme", acme.key, channel)
            await eventually_async(lambda: _serves(there))
            await bench.ask(there, 300)
        await bench.check(other.admin_address)
    await bench.check()  # what the other router had counted is there without it


async def _serves(tenant: Tenant) -> bool:
    try:
        response = await tenant.stub.ListModels(pb.ListModelsRequest(), timeout=5.0, metadata=tenant.metadata)
    except grpc.aio.AioRpcError:
        return False
    return bool(response.models)


async def _sees(cluster: Cluster, num_workers: int) -> bool:
    request = admin_pb2.GetStatusRequest()
    status = await cluster.cluster_admin.GetStatus(request, timeout=10.0, metadata=ADMIN_METADATA)
    return len(status.workers) == num_workers


async def test_what_a_lost_worker_had_sent_is_billed_once_when_another_goes_on(urls: RoleUrls, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running_cluster(urls, tmp_path, workers=()))
        processes = {}
        for name in ("a", "b"):
            process = worker_process(name, urls.worker, cluster_key(MASTER), digest_step_s=0.01)
            processes[name] = await stack.enter_async_context(process)
        bench = Bench(cluster)
        await eventually_async(lambda: _sees(cluster, len(processes)))
        stream = cluster.acme.stream(tokens_request(range(100, 180), max_tokens=150))
        told, started = bench.of(cluster.acme), (await stream.read()).started
        for _ in range(10):
            await stream.read()
        processes[started.route.worker_id].send_signal(signal.SIGKILL)
        while (event := await stream.read()) is not grpc.aio.EOF:
            if event.HasField("finished"):
                usage = event.finished.usage
                told.prompt, told.cached, told.generated = usage.prompt_tokens, usage.cached_tokens, 150
                told.completed = 1
                assert usage.completion_tokens == 150
        await bench.check()


async def test_preempted_requests_are_billed_what_they_were_told(urls: RoleUrls, tmp_path: Path) -> None:
    tight = {"pool": NumBlocks(24), "digest_step_s": 0.001}
    async with running_cluster(urls, tmp_path, (tight,)) as cluster:
        bench = Bench(cluster)
        asks = [
            bench.ask(tenant, 1_000 * at, length=40, max_tokens=90)
            for at, tenant in enumerate((cluster.acme, cluster.globex) * 4)
        ]
        answers = await asyncio.gather(*asks)
        report = await bench.check()
        assert report.total.recomputed_tokens == sum(answer.timings.recomputed_tokens for answer in answers)

        async def told() -> bool:
            found = await report_of(cluster.router.admin_address)
            evicted = cluster.workers[0].record().load.pressure.evicted_blocks
            return adds_up(found) and evicted > 0 and found.total_evictions.evicted_blocks == evicted

        await eventually_async(told)


async def test_advice_knows_what_a_tenant_would_hit_with_more_room(urls: RoleUrls, tmp_path: Path) -> None:
    async with running_cluster(urls, tmp_path, ({"pool": NumBlocks(64)},)) as cluster:
        bench = Bench(cluster)
        for _ in range(4):
            for number in range(8):
                await bench.ask(cluster.acme, 1_000 * number, length=200, max_tokens=1)
        async with grpc.aio.insecure_channel(cluster.router.admin_address) as channel:
            stub: Any = admin_usage_grpc.UsageServiceStub(channel)

            async def advice_for(name: str) -> admin_pb.AdviseQuotaResponse:
                request = admin_pb.AdviseQuotaRequest(tenant=name)
                found: admin_pb.AdviseQuotaResponse = await stub.AdviseQuota(
                    request, timeout=10.0, metadata=ADMIN_METADATA
                )
                return found

            mine, theirs = await advice_for("acme"), await advice_for("globex")
        assert mine.asked_blocks >= 4 * 8 * 12
        assert mine.points[-1].share == 1.0
        assert mine.points[-1].hit_share < 0.05, "eight prompts in turn do not fit: each evicts the next one"
        assert (theirs.asked_blocks, theirs.workers) == (0, 1)


async def test_bills_outlive_a_store_that_is_killed_and_what_is_used_while_it_is_away_is_billed_later(
    tmp_path: Path,
) -> None:
    with EmbeddedValkey.start(tmp_path / "v") as server:
        async with running_cluster(server.urls, tmp_path / "r", ({},)) as cluster:
            bench = Bench(cluster)
            await bench.ask(cluster.acme, 100)
            await bench.check()
            await end(server)
            for _ in range(3):
                await bench.ask(cluster.acme, 100, max_tokens=5)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await own_usage(cluster, cluster.acme)
            assert error.value.code() is Code.UNAVAILABLE
            server.restart()
            await eventually_async(lambda: _answers(cluster))
            await bench.check()


async def _answers(cluster: Cluster) -> bool:
    try:
        await own_usage(cluster, cluster.acme)
    except grpc.aio.AioRpcError:
        return False
    return True
