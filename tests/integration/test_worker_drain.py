"""A worker that leaves, and takers that refuse or say nothing: what one of them does costs nobody else anything."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.domain import Domain, DomainTag
from cache_store.errors import LeavingError, PreconditionError
from cache_store.fence import FenceNotice
from cache_store.fence_document import sign_notice
from cache_store.index import Incarnation
from cache_store.peer_seal import open_offer, seal_offer
from cache_store.registry import PROTOCOL_VERSION
from cache_store.request_token import verify
from cache_store.tokens import pack
from tests.support.fences import fenced_domain, make_fence
from tests.support.memory_stores import MemoryStores
from tests.support.peer_calls import Asker
from tests.support.worker_host import (
    CLUSTER_KEY,
    DIGEST_FORMAT,
    WorkerClient,
    client_of,
    digest_config,
    digest_domain,
    drain_order,
    running_workers,
)
from worker import rpc_retire
from worker.host import WorkerHost
from worker.rpc_retire import MAX_SILENT, Farewell, Taker
from worker.statuses import to_status

ACME, GLOBEX = digest_domain("acme"), digest_domain("globex")
PROMPTS = [list(range(start, start + 40)) for start in range(100, 600, 100)]
"""Two full blocks of 16 each."""

Adopt = Callable[[str, Any], Awaitable[int]]


def opened(taker: Incarnation, request: worker_pb2.AdoptPrefixRequest) -> worker_pb2.AdoptPrefixRequest:
    return worker_pb2.AdoptPrefixRequest.FromString(open_offer(CLUSTER_KEY, taker, request.sealed_offer))


class ScriptedTaker(worker_pb2_grpc.WorkerServiceServicer):
    """Takes prefixes as it is told."""

    def __init__(self, adopt: Adopt) -> None:
        self._adopt = adopt
        self.asked: Counter[str] = Counter()
        """By tenant."""
        self.incarnation = Incarnation("b" * 32)
        self.address = ""
        self.server = grpc.aio.server()

    async def AdoptPrefix(  # type: ignore[override]  # noqa: N802
        self, request: worker_pb2.AdoptPrefixRequest, context: Any
    ) -> worker_pb2.AdoptPrefixResponse:
        token = opened(self.incarnation, request).request_token
        tenant = verify(CLUSTER_KEY, token, self.incarnation, 0.0).domain.tenant
        self.asked[tenant] += 1
        return worker_pb2.AdoptPrefixResponse(block_count=await self._adopt(tenant, context))

    @property
    def taker(self) -> Taker:
        return Taker(self.address, self.incarnation, 0.0)


@asynccontextmanager
async def scripted_taker(adopt: Adopt, kind: type[ScriptedTaker] = ScriptedTaker) -> AsyncIterator[ScriptedTaker]:
    made = kind(adopt)
    server = made.server
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(made, server)
    made.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield made
    finally:
        await server.stop(0)


async def refuse(context: Any) -> None:
    """As a worker does."""
    status = to_status(PreconditionError("this worker serves no such format"))
    await context.abort(status.code, status.details, status.trailing_metadata)


@pytest.fixture
async def leaving() -> AsyncIterator[WorkerHost]:
    """A worker that has five prompts of each of two tenants."""
    async with AsyncExitStack() as stack:
        (host,) = await stack.enter_async_context(running_workers([digest_config()], MemoryStores().connect))
        client = await stack.enter_async_context(client_of(host))
        for prompt in PROMPTS:
            await client.execute(ACME, prompt, max_tokens=1)
            await client.execute(GLOBEX, prompt, max_tokens=1)
        yield host


async def leave(host: WorkerHost, *takers: Taker) -> Farewell:
    return await host._retirement.run(takers, 5.0)


@pytest.mark.parametrize("refused", [ACME, GLOBEX], ids=lambda domain: domain.tenant)
async def test_what_one_tenant_is_refused_costs_no_other_one_its_warm_start(
    leaving: WorkerHost, refused: Domain
) -> None:
    async def adopt(tenant: str, context: Any) -> int:
        if tenant == refused.tenant:
            await refuse(context)
        return 2

    async with scripted_taker(adopt) as taker:
        farewell = await leave(leaving, taker.taker)
        assert farewell.num_moved == 2 * len(PROMPTS)
        assert taker.asked == {"acme": len(PROMPTS), "globex": len(PROMPTS)}


async def test_a_prefix_that_ends_in_an_error_ends_nothing_else(leaving: WorkerHost) -> None:
    asked = Counter[str]()

    async def adopt(tenant: str, context: Any) -> int:
        asked[tenant] += 1
        if asked.total() % 2:
            await context.abort(grpc.StatusCode.UNKNOWN, "it broke")
        return 2

    async with scripted_taker(adopt) as taker:
        assert (await leave(leaving, taker.taker)).num_moved == len(PROMPTS) * 2


async def test_who_says_nothing_is_asked_no_further(leaving: WorkerHost) -> None:
    async def silent(_: str, context: Any) -> int:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "as where nobody listens")
        return 0

    async def adopt(_: str, __: Any) -> int:
        return 2

    async with scripted_taker(silent) as away, scripted_taker(adopt) as there:
        farewell = await leave(leaving, away.taker, there.taker)
        assert away.asked.total() == MAX_SILENT
        assert farewell.num_moved == 2 * there.asked.total() > 0


async def test_who_ends_in_the_middle_costs_what_it_was_to_take(leaving: WorkerHost) -> None:
    servers: list[grpc.aio.Server] = []
    stopping: list[asyncio.Task[None]] = []

    async def ends(_: str, __: Any) -> int:
        stopping.append(asyncio.create_task(servers[0].stop(0)))
        await asyncio.shield(stopping[0])  # which cancels this call, and has to come to its end
        return 2

    async def adopt(_: str, __: Any) -> int:
        return 2

    async with scripted_taker(ends) as ending, scripted_taker(adopt) as there:
        servers.append(ending.server)
        farewell = await leave(leaving, ending.taker, there.taker)
        assert ending.asked.total() == 1
        assert farewell.num_moved == 2 * there.asked.total() > 0


async def test_who_has_another_key_is_given_nothing(leaving: WorkerHost) -> None:
    """And it gives nothing to who asks with another one."""
    configs = [digest_config("worker-1", cluster_key=b"x" * 32)]
    async with running_workers(configs, MemoryStores().connect) as (stranger,):
        assert (await leave(leaving, taker_of(stranger))).num_moved == 0
        assert await snapshot(stranger) == {}
        async with client_of(stranger) as client:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Asker(client.stub, stranger.incarnation).blocks(ACME, PROMPTS[0])
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("who", ["the taker", "the one that leaves"])
async def test_what_is_purged_meanwhile_is_not_given(who: str) -> None:
    """Whichever of the two hears of it first; another tenant's is."""
    async with AsyncExitStack() as stack:
        configs = [digest_config(f"worker-{number}") for number in range(2)]
        hosts = await stack.enter_async_context(running_workers(configs, MemoryStores().connect))
        holder, taker = hosts
        clients = [await stack.enter_async_context(client_of(host)) for host in hosts]
        domains = [fenced_domain(make_fence(name), kv_format=DIGEST_FORMAT) for name in ("acme", "globex")]
        for domain in domains:
            for prompt in PROMPTS:
                await clients[0].execute(domain, prompt, max_tokens=1)
        named = await holder._retirement._prefixes()
        assert len(named) == 2 * len(PROMPTS)
        await purge(clients[who == "the taker"], "acme")
        moved = Counter[Incarnation]()
        await holder._retirement._give(named, [taker_of(taker)], moved)
        assert moved.total() == 2 * len(PROMPTS)
        assert set(await snapshot(taker)) == {domains[1].tag}


async def test_a_tenant_that_was_deleted_meanwhile_is_given_nothing(leaving: WorkerHost) -> None:
    async with running_workers([digest_config("worker-1")], MemoryStores().connect) as (taker,):
        named = await leaving._retirement._prefixes()
        await leaving.thread.call(lambda engine: engine.purge({ACME.tenant: None}), 10.0)
        moved = Counter[Incarnation]()
        await leaving._retirement._give(named, [taker_of(taker)], moved)
        assert moved.total() == 2 * len(PROMPTS)
        assert set(await snapshot(taker)) == {GLOBEX.tag}


def taker_of(host: WorkerHost) -> Taker:
    return Taker(host.address, host.incarnation, 0.0)


async def snapshot(host: WorkerHost) -> Mapping[DomainTag, bytes]:
    return await host.thread.call(lambda engine: engine.snapshot(), 10.0)


async def purge(client: WorkerClient, tenant: str) -> None:
    fence = make_fence(tenant, 1)
    notice = sign_notice(CLUSTER_KEY, FenceNotice(fence.tenant, fence, 2))
    request = worker_pb2.PurgeRequest(protocol_version=PROTOCOL_VERSION, fence=notice)
    await client.stub.Purge(request, timeout=20)


async def test_who_takes_nothing_is_asked_once_for_each(leaving: WorkerHost) -> None:
    async def adopt(_: str, __: Any) -> int:
        return 0

    async with scripted_taker(adopt) as taker:
        farewell = await leave(leaving, taker.taker)
        assert (farewell.num_moved, farewell.num_running) == (0, 0)
        assert farewell.num_cached == 4 * len(PROMPTS)
        assert taker.asked.total() == 2 * len(PROMPTS)


async def test_what_one_has_no_room_for_is_offered_to_the_next(leaving: WorkerHost) -> None:
    async def full(_: str, __: Any) -> int:
        return 0

    async def adopt(_: str, __: Any) -> int:
        return 2

    async with scripted_taker(full) as first, scripted_taker(adopt) as second:
        farewell = await leave(leaving, first.taker, second.taker)
        assert first.asked.total() > 0
        assert second.asked.total() == 2 * len(PROMPTS)
        assert farewell.num_moved == farewell.num_cached


async def test_who_leaves_too_is_offered_one_thing(leaving: WorkerHost) -> None:
    async def leaves(_: str, context: Any) -> int:
        status = to_status(LeavingError("this worker is leaving", 1.0))
        await context.abort(status.code, status.details, status.trailing_metadata)
        return 0

    async def adopt(_: str, __: Any) -> int:
        return 2

    async with scripted_taker(leaves) as first, scripted_taker(adopt) as second:
        assert (await leave(leaving, first.taker, second.taker)).num_moved == 4 * len(PROMPTS)
        assert first.asked.total() == 1


async def test_each_offer_tells_what_the_clock_says_then() -> None:
    """What is taken in many parts is offered for longer than an old clock would be believed."""
    clocks: list[int] = []

    class Slow(ScriptedTaker):
        async def AdoptPrefix(  # type: ignore[override]  # noqa: N802
            self, request: worker_pb2.AdoptPrefixRequest, context: Any
        ) -> worker_pb2.AdoptPrefixResponse:
            clocks.append(opened(self.incarnation, request).holder.clock_time.ToNanoseconds())
            return worker_pb2.AdoptPrefixResponse(block_count=1)

    async with running_workers([digest_config()], MemoryStores().connect) as (host,):
        async with client_of(host) as client:
            await client.execute(ACME, PROMPTS[0], max_tokens=1)
        async with scripted_taker(lambda _, __: asyncio.sleep(0, 0), Slow) as taker:
            assert (await leave(host, taker.taker)).num_moved == 2
    assert clocks[0] < clocks[1]


async def test_a_step_that_outlasts_the_order_ends_in_leaving_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_retire, "ROUND_S", 0.05)
    configs = [digest_config(digest_step_s=0.5), digest_config("worker-1")]
    async with running_workers(configs, MemoryStores().connect) as (host, other), client_of(host) as client:
        running = asyncio.create_task(client.execute(ACME, PROMPTS[0], max_tokens=4))
        while not host.thread.num_open:
            await asyncio.sleep(0.01)
        response = await client.stub.Drain(drain_order(host, other), timeout=30)
        assert response.handed_over_requests == 0
        assert len((await running).tokens[0]) == 4
        await asyncio.wait_for(host.wait_ended(), 20)
        assert host.has_retired


async def test_of_two_that_are_to_leave_at_once_one_stays() -> None:
    configs = [digest_config(), digest_config("worker-1")]
    async with AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(running_workers(configs, MemoryStores().connect))
        clients = [await stack.enter_async_context(client_of(host)) for host in hosts]
        orders = [drain_order(*hosts), drain_order(*reversed(hosts))]
        calls = (client.stub.Drain(each, timeout=30) for client, each in zip(clients, orders, strict=True))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        refused = [at for at, answer in enumerate(answers) if isinstance(answer, grpc.aio.AioRpcError)]
        assert refused
        assert {answers[at].code() for at in refused} == {grpc.StatusCode.FAILED_PRECONDITION}  # type: ignore[union-attr]
        for at in refused:
            assert len((await clients[at].execute(ACME, PROMPTS[0], max_tokens=2)).tokens[0]) == 2
        with pytest.raises(grpc.aio.AioRpcError, match="none of the workers"):
            await clients[refused[0]].stub.Drain(drain_order(hosts[refused[0]]), timeout=30)


async def test_nobody_takes_what_there_is_nobody_for(leaving: WorkerHost) -> None:
    assert (await leave(leaving)).num_moved == 0


async def test_an_offer_in_clear_tells_nothing(leaving: WorkerHost) -> None:
    """Neither a prompt nor a domain's root: only the taker reads what it is offered."""
    offers: list[worker_pb2.AdoptPrefixRequest] = []

    class Listening(ScriptedTaker):
        async def AdoptPrefix(  # type: ignore[override]  # noqa: N802
            self, request: worker_pb2.AdoptPrefixRequest, context: Any
        ) -> worker_pb2.AdoptPrefixResponse:
            offers.append(request)
            return worker_pb2.AdoptPrefixResponse(block_count=2)

    async with scripted_taker(lambda _, __: asyncio.sleep(0, 0), Listening) as taker:
        await leave(leaving, taker.taker)
    wire = b"".join(each.SerializeToString() for each in offers)
    told = [opened(taker.incarnation, each) for each in offers]
    assert {bytes(each.prompt) for each in told} >= {pack(prompt[:32]) for prompt in PROMPTS}
    for each in told:
        assert bytes(each.prompt[:16]) not in wire
    assert all(domain.root not in wire for domain in (ACME, GLOBEX))


async def test_who_has_no_cluster_key_offers_nothing(leaving: WorkerHost) -> None:
    """Also not with a request's token, which was read from the network."""
    async with client_of(leaving) as client:
        plain = worker_pb2.AdoptPrefixRequest(
            protocol_version=PROTOCOL_VERSION, request_token=client.token(ACME), prompt=pack(range(32))
        )
        own, body = leaving.record().incarnation, plain.SerializeToString()
        others = (seal_offer(b"x" * 32, own, body), seal_offer(CLUSTER_KEY, Incarnation("c"), body))
        for sealed in (b"", b"x" * 40, *others):
            plain.sealed_offer = sealed
            with pytest.raises(grpc.aio.AioRpcError, match="offer does not open") as caught:
                await client.stub.AdoptPrefix(plain, timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
