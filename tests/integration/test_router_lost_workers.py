"""Workers that die, stop, hang or do not fit: another one begins anew, or goes on with the tokens that were sent."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import inference_pb2 as pb

from cache_store.redis_registry import RedisRegistryWriter
from cache_store.redis_session import RedisSession
from cache_store.registry import PROTOCOL_VERSION, WorkerId
from cache_store.tokens import pack
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from services.router.rendezvous import affinity, in_order
from services.tenants.master_key import cluster_key
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    ADMIN_METADATA,
    MASTER,
    Cluster,
    detail_of,
    eventually_async,
    running_cluster,
    start_worker,
    tokens_request,
)
from tests.support.worker_process import worker_process
from tests.support.worker_records import worker_record

PROMPT = list(range(100, 180))
Code = grpc.StatusCode


@pytest.fixture
def urls(request: pytest.FixtureRequest, valkey: EmbeddedValkey) -> RoleUrls:
    return server_named(request, "valkey").urls


@asynccontextmanager
async def registry_writer(urls: RoleUrls) -> AsyncIterator[RedisRegistryWriter]:
    session = RedisSession(urls.worker)
    yield RedisRegistryWriter(session)
    await session.close()


class Mortal:
    """A cluster whose workers are processes."""

    def __init__(self, cluster: Cluster, processes: dict[str, Process]) -> None:
        self.cluster = cluster
        self.processes = processes

    async def status(self) -> Any:
        return await self.cluster.cluster_admin.GetStatus(
            admin_pb2.GetStatusRequest(), timeout=10.0, metadata=ADMIN_METADATA
        )

    async def wait_for_workers(self, *names: str) -> None:
        async def joined() -> bool:
            return [worker.worker_id for worker in (await self.status()).workers] == list(names)

        await eventually_async(joined)

    async def chosen_worker(self, request_id: str) -> str:
        """Name of the worker that a request of acme was sent to."""
        found: list[str] = []

        async def asked() -> bool:
            try:
                record = await self.cluster.record(self.cluster.acme, request_id)
            except grpc.aio.AioRpcError:
                return False
            found[:] = [term.worker_id for term in record.terms[:1]]
            return bool(found)

        await eventually_async(asked)
        return found[0]


async def mortal(stack: AsyncExitStack, urls: RoleUrls, folder: Path, names: list[str], **changes: Any) -> Mortal:
    cluster = await stack.enter_async_context(running_cluster(urls, folder, workers=()))
    processes = {}
    for name in names:
        process = worker_process(name, urls.worker, cluster_key(MASTER), **changes)
        processes[name] = await stack.enter_async_context(process)
    made = Mortal(cluster, processes)
    await made.wait_for_workers(*names)
    return made


@pytest.fixture
async def slow_pair(urls: RoleUrls, tmp_path: Path) -> AsyncIterator[Mortal]:
    """Two workers whose steps take long enough to be killed before the first token."""
    async with AsyncExitStack() as stack:
        yield await mortal(stack, urls, tmp_path, ["a", "b"], digest_step_s=3.0)


@pytest.fixture
async def quick_pair(urls: RoleUrls, tmp_path: Path) -> AsyncIterator[Mortal]:
    """Two workers that make a token every few milliseconds."""
    async with AsyncExitStack() as stack:
        yield await mortal(stack, urls, tmp_path, ["a", "b"], digest_step_s=0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_worker_that_dies_before_the_first_token_is_replaced_by_another(
    slow_pair: Mortal, number: signal.Signals
) -> None:
    request = tokens_request(PROMPT, max_tokens=1, request_id="r")
    call = asyncio.create_task(slow_pair.cluster.acme.generate(request))
    victim = await slow_pair.chosen_worker("r")
    slow_pair.processes[victim].send_signal(number)
    answer = await call
    assert answer.route.worker_id != victim
    assert answer.route.attempts == 2
    assert answer.usage.completion_tokens == 1
    record = await slow_pair.cluster.record(slow_pair.cluster.acme, answer.request_id)
    assert (record.status, record.attempts) == ("OK", 2)
    assert [term.worker_id for term in record.terms] == [answer.route.worker_id]


async def test_several_that_die_at_once_cost_no_request(urls: RoleUrls, tmp_path: Path) -> None:
    """Nobody has noticed yet: each is asked once, and there is one that lives."""
    async with AsyncExitStack() as stack:
        four = await mortal(stack, urls, tmp_path, ["a", "b", "c", "d"])
        for name in "abc":
            four.processes[name].send_signal(signal.SIGKILL)
        requests = [tokens_request([first, *PROMPT], max_tokens=1) for first in range(6)]
        answers = await asyncio.gather(*map(four.cluster.acme.generate, requests))
        assert {answer.route.worker_id for answer in answers} == {"d"}


def last_choice(mortal: Mortal, first: str) -> WorkerId:
    """The worker that would be chosen after all others, for `PROMPT`, beside the first one."""
    acme = mortal.cluster.router._parts.directory.tenant_by_name("acme")
    common = affinity(acme.id, "", "", pack(PROMPT))
    return [each for each in in_order(common, map(WorkerId, mortal.processes)) if each != first][-1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_machine_that_is_lost_with_all_its_workers_costs_no_request(
    urls: RoleUrls, tmp_path: Path, number: signal.Signals
) -> None:
    """However many they are, and although the one that is left is the last one that would be chosen."""
    async with AsyncExitStack() as stack:
        seven = await mortal(stack, urls, tmp_path, list("abcdefg"), digest_step_s=0.01)
        stream = seven.cluster.acme.stream(tokens_request(PROMPT, max_tokens=200))
        events = [await stream.read() for _ in range(8)]
        survivor = last_choice(seven, events[0].started.route.worker_id)
        for name, process in seven.processes.items():
            if name != survivor:
                process.send_signal(number)
        await read_into(events, stream)
        assert events[-1].HasField("finished")
        assert len(tokens_of(events)[0]) == 4 * 200


async def test_one_that_was_slow_to_say_so_is_better_than_those_that_are_gone(urls: RoleUrls, tmp_path: Path) -> None:
    """All are suspected then: those that were lost, and the one that is left."""
    async with AsyncExitStack() as stack:
        seven = await mortal(stack, urls, tmp_path, list("abcdefg"), digest_step_s=0.01)
        view = seven.cluster.router._parts.view
        stream = seven.cluster.acme.stream(tokens_request(PROMPT, max_tokens=200))
        events = [await stream.read() for _ in range(8)]
        survivor = last_choice(seven, events[0].started.route.worker_id)
        view.suspect(next(each.incarnation for each in view.records() if each.worker_id == survivor))
        for name, process in seven.processes.items():
            if name != survivor:
                process.kill()
        await read_into(events, stream)
        assert events[-1].HasField("finished")
        assert len(tokens_of(events)[0]) == 4 * 200


async def read_into(events: list[Any], stream: Any) -> None:
    while (event := await stream.read()) is not grpc.aio.EOF:
        events.append(event)


LOSSES: dict[str, tuple[signal.Signals, dict[str, Any]]] = {
    "killed, greedy": (signal.SIGKILL, {}),
    "stopped, sampled": (signal.SIGSTOP, {"temperature": 1.0, "seed": 7, "min_tokens": 150}),
    "killed, three samples": (signal.SIGKILL, {"temperature": 1.0, "seed": 7, "n": 3}),
}


def tokens_of(events: list[Any]) -> dict[int, bytes]:
    """What a stream told, by sample."""
    told: dict[int, bytes] = {}
    for event in events:
        if event.HasField("delta"):
            index = event.delta.sample_index
            told[index] = told.get(index, b"") + event.delta.token_ids.packed
    return told


@pytest.mark.parametrize(("number", "sampling"), LOSSES.values(), ids=LOSSES.keys())
async def test_another_worker_goes_on_with_what_was_sent(
    quick_pair: Mortal, number: signal.Signals, sampling: dict[str, Any]
) -> None:
    acme = quick_pair.cluster.acme
    request = tokens_request(PROMPT, max_tokens=200, request_id="r", **sampling)
    stream = acme.stream(request)
    unary = asyncio.create_task(acme.generate(request))
    events = [await stream.read() for _ in range(8)]
    victim = events[0].started.route.worker_id
    quick_pair.processes[victim].send_signal(number)
    await read_into(events, stream)
    assert [event.HasField("started") for event in events].count(True) == 1
    assert events[-1].HasField("finished")
    whole = await unary
    undisturbed = await acme.generate(tokens_request(PROMPT, max_tokens=200, **sampling))
    assert undisturbed.route.worker_id != victim
    expected = {each.sample_index: each.token_ids.packed for each in undisturbed.completions}
    assert tokens_of(events) == {each.sample_index: each.token_ids.packed for each in whole.completions} == expected
    assert [each.text for each in whole.completions] == [each.text for each in undisturbed.completions]
    assert all(each.finish_reason == pb.FINISH_REASON_LENGTH for each in whole.completions)
    assert whole.usage.completion_tokens == 200 * len(expected)
    record = await quick_pair.cluster.record(acme, "r")
    assert (record.status, record.attempts) == ("OK", 2)


async def test_with_no_other_worker_it_ends_in_aborted_with_the_tokens(urls: RoleUrls, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        alone = await mortal(stack, urls, tmp_path, ["a"], digest_step_s=0.01)
        request = tokens_request(PROMPT, max_tokens=4_000, request_id="r")
        call = alone.cluster.acme.stream(request)
        unary = asyncio.create_task(alone.cluster.acme.generate(request))
        events = [await call.read() for _ in range(5)]
        alone.processes["a"].send_signal(signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError) as streamed:
            await read_into(events, call)
        with pytest.raises(grpc.aio.AioRpcError) as whole:
            await unary
    assert streamed.value.code() is whole.value.code() is Code.ABORTED
    partial = detail_of(streamed.value, pb.PartialGeneration)
    assert partial == detail_of(whole.value, pb.PartialGeneration)
    (sample,) = partial.completions
    tokens = tokens_of(events)[0]
    assert partial.completion_tokens == len(tokens) // 4
    assert sample.token_ids.packed
    assert tokens.startswith(sample.token_ids.packed)
    assert "".join(e.delta.text for e in events if e.HasField("delta")).startswith(sample.text)
    assert sample.finish_reason == pb.FINISH_REASON_UNSPECIFIED


async def test_the_last_worker_dies_and_the_answer_is_unavailable_until_one_is_back(
    urls: RoleUrls, tmp_path: Path
) -> None:
    async with running_cluster(urls, tmp_path, ({},)) as cluster:
        await cluster.acme.generate(tokens_request(PROMPT))
        await cluster.workers.pop().stop()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await cluster.acme.generate(tokens_request(PROMPT))
        assert error.value.code() is Code.UNAVAILABLE
        assert detail_of(error.value, RetryInfo).retry_delay.ToMilliseconds() > 0
        cluster.workers.append(await start_worker(urls, "worker-0"))

        async def served() -> bool:
            try:
                return bool((await cluster.acme.generate(tokens_request(PROMPT))).completions)
            except grpc.aio.AioRpcError as error:
                if error.code() is not Code.UNAVAILABLE:
                    raise
                return False

        await eventually_async(served)
        await cluster.workers[0].stop()


async def test_a_draining_worker_gets_nothing_new(urls: RoleUrls, tmp_path: Path) -> None:
    async with running_cluster(urls, tmp_path, ({}, {})) as cluster:
        first = await cluster.acme.generate(tokens_request(PROMPT))
        holder = next(w for w in cluster.workers if w.record().worker_id == first.route.worker_id)
        await holder.drain(1.0)
        for _ in range(5):
            answer = await cluster.acme.generate(tokens_request(PROMPT))
            assert answer.route.worker_id != first.route.worker_id
            assert answer.completions == first.completions


async def test_workers_of_another_protocol_version_are_refused_by_name(urls: RoleUrls, tmp_path: Path) -> None:
    async with running_cluster(urls, tmp_path, ({},)) as cluster:
        async with registry_writer(urls) as registry:
            old = worker_record("veteran", protocol_version=PROTOCOL_VERSION - 1, model="other")
            other = dataclasses.replace(
                cluster.workers[0].record(), worker_id="stranger", incarnation="5" * 32, tokenizer_digest="0" * 32
            )
            await registry.renew(old)
            await registry.renew(other)
            seen: list[str] = []

            async def refused() -> bool:
                status = await cluster.cluster_admin.GetStatus(
                    admin_pb2.GetStatusRequest(), timeout=10.0, metadata=ADMIN_METADATA
                )
                seen[:] = status.refused_workers
                return len(seen) == 2

            await eventually_async(refused)
        assert seen[0].startswith("stranger: its tokenizer is " + "0" * 32)
        versions = f"has version {PROTOCOL_VERSION - 1}, this router speaks version {PROTOCOL_VERSION}"
        assert seen[1].startswith(f"veteran: its worker protocol {versions}")
        assert (await cluster.acme.generate(tokens_request(PROMPT))).route.worker_id == "worker-0"
