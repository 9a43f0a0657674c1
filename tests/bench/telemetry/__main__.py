"""What metrics and tracing cost: `python -m tests.bench.telemetry`, or `make bench-telemetry`.

Two routers over the same workers, and two workers asked straight, each in a process of its own: one of each pair with
metrics and tracing off, one with both on, scraped every second and sending spans to a collector. Token-digest runners
without time of their own, so that only bookkeeping is measured. Both of a pair are asked in turn, in random order
within a round. A ratio is that of one round's calls per second of processor time of the process (or per second), on
against off; the median of all rounds is told, with the middle half of them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc
import uvloop
from stemcache.v1 import inference_pb2 as pb
from stemcache.v1 import inference_pb2_grpc
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.redis_registry import RedisRegistryReader
from cache_store.redis_session import RedisSession
from cache_store.registry import PROTOCOL_VERSION, WorkerRecord
from cache_store.request_token import RequestClaims, sign
from cache_store.telemetry.spans import TRACES_PER_S
from cache_store.tokens import PackedTokens, pack
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from services.tenants.directory import KnownTenant
from services.tenants.master_key import cluster_key
from tests.bench.machine import ROOT, conditions_line, machine, print_table, verdict, versions, write_json
from tests.bench.router.processes import Listening, listening
from tests.support.otlp_collector import collecting
from tests.support.router_host import MASTER, Tenant, eventually_async, operator_store, until_served
from tests.support.scrapes import fetch

MIN_RATIO = 0.97
CONCURRENCY = 16
SCRAPE_S = 1.0
_TOKEN_S = 3_600.0
_READY_S = 60.0
_WORKER_TOKENS = 64


@dataclass(slots=True)
class Pair:
    """One kind of process, off and on."""

    name: str
    calls: tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]
    processes: tuple[Listening, Listening]
    cpu_ratios: list[float] = field(default_factory=list)
    rate_ratios: list[float] = field(default_factory=list)


def main() -> None:
    arguments = _arguments()
    before = machine()
    with tempfile.TemporaryDirectory(prefix="sc-") as folder, EmbeddedValkey.start(Path(folder) / "valkey") as server:
        pairs = uvloop.run(_run(arguments, server.urls, Path(folder)))
    after = machine()
    print_table(
        ("on against off", "calls per core", "middle half", "calls/s", "middle half"),
        [(pair.name, *_cells(pair.cpu_ratios), *_cells(pair.rate_ratios)) for pair in pairs],
    )
    for pair in pairs:
        ratio = statistics.median(pair.cpu_ratios)
        print(f"  {pair.name}, calls per core >= {MIN_RATIO:g}: {ratio:.3f}, {verdict(-ratio, -MIN_RATIO)}")
    print(
        f"{conditions_line(before, after)}; {arguments.rounds} rounds of {arguments.calls} calls each, {CONCURRENCY} "
        f"at once, {arguments.tokens} prompt tokens, at most {arguments.traces_per_s} traces a second"
    )
    document = {
        "before": before,
        "after": after,
        "versions": versions("grpcio", "uvloop", "opentelemetry-sdk"),
        "settings": {name: str(value) for name, value in vars(arguments).items()},
        "ratios": {pair.name: {"cpu": pair.cpu_ratios, "rate": pair.rate_ratios} for pair in pairs},
    }
    write_json(arguments.json, document)
    print(f"JSON: {arguments.json}")


def _cells(ratios: Sequence[float]) -> tuple[str, str]:
    low, _, high = statistics.quantiles(ratios, n=4)
    return f"{statistics.median(ratios):.3f}", f"{low:.3f}-{high:.3f}"


async def _run(arguments: argparse.Namespace, urls: RoleUrls, folder: Path) -> list[Pair]:
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(collecting())
        sights: tuple[dict[str, Any], ...] = (
            {},
            {"metrics": True, "otlp": collector.endpoint, "traces_per_s": arguments.traces_per_s},
        )
        store = await stack.enter_async_context(operator_store(urls))
        tenant = await store.create_tenant("acme")
        key = (await store.create_key("acme")).value.text
        base = {"redis_url": urls.worker, "cluster_key": cluster_key(MASTER).hex()}
        workers, routers = [], []
        for number, sight in enumerate(sights):
            told = base | sight | {"worker_id": f"worker-{number}"}
            workers.append(await stack.enter_async_context(listening("tests.bench.telemetry.worker_process", told)))
            told = {"urls": asdict(urls), "folder": str(folder / f"router-{number}")} | sight
            routers.append(await stack.enter_async_context(listening("tests.bench.router.router_process", told)))
        records = await _records(urls, len(workers))
        known = KnownTenant(tenant.value, tenant.state.generation)
        prompt = pack(random.Random(0).randrange(2, 32_000) for _ in range(arguments.tokens))
        generating = [await stack.enter_async_context(grpc.aio.insecure_channel(each.address)) for each in routers]
        executing = [await stack.enter_async_context(grpc.aio.insecure_channel(each.address)) for each in workers]
        for channel in generating:
            await until_served(Tenant("acme", key, channel), len(workers))
        pairs = [
            Pair("router", tuple(_generate(channel, key, prompt) for channel in generating), tuple(routers)),
            Pair(
                f"worker, {_WORKER_TOKENS} tokens each",
                tuple(
                    _execute(channel, _message(_record_of(records, each), known, prompt))
                    for channel, each in zip(executing, workers, strict=True)
                ),
                tuple(workers),
            ),
        ]
        scraping = asyncio.create_task(_scrape([workers[1], routers[1]]))
        for pair in pairs:
            await _measure(pair, arguments.rounds, arguments.calls if pair.name == "router" else arguments.worker_calls)
        scraping.cancel()
        return pairs


async def _measure(pair: Pair, num_rounds: int, num_calls: int) -> None:
    order = random.Random(1)
    for call in pair.calls:
        await _load(call, num_calls // 4)
    for _ in range(num_rounds):
        found: dict[int, tuple[float, float]] = {}
        for side in order.sample((0, 1), 2):
            cpu_s, began_s = pair.processes[side].cpu_s(), time.perf_counter()
            await _load(pair.calls[side], num_calls)
            took_s, used_s = time.perf_counter() - began_s, pair.processes[side].cpu_s() - cpu_s
            found[side] = (num_calls / used_s, num_calls / took_s)
        pair.cpu_ratios.append(found[1][0] / found[0][0])
        pair.rate_ratios.append(found[1][1] / found[0][1])


async def _load(call: Callable[[], Awaitable[None]], num_calls: int) -> None:
    left = iter(range(num_calls))

    async def caller() -> None:
        for _ in left:
            await call()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENCY):
            tasks.create_task(caller())


async def _scrape(processes: Sequence[Listening]) -> None:
    while True:
        for process in processes:
            await fetch(process.metrics_address)
        await asyncio.sleep(SCRAPE_S)


async def _records(urls: RoleUrls, number: int) -> list[WorkerRecord]:
    session = RedisSession(urls.router)
    reader = RedisRegistryReader(session)

    async def joined() -> bool:
        return len(await reader.workers()) == number

    await eventually_async(joined, _READY_S)
    records = await reader.workers()
    await session.close()
    return records


def _record_of(records: Sequence[WorkerRecord], process: Listening) -> WorkerRecord:
    return next(record for record in records if record.address == process.address)


def _generate(channel: grpc.aio.Channel, key: str, prompt: PackedTokens) -> Callable[[], Awaitable[None]]:
    stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
    metadata = (("authorization", f"Bearer {key}"),)
    sampling = pb.SamplingParams(max_tokens=1, ignore_eos=True)
    asked = pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(packed=prompt)), sampling_params=sampling)
    request = pb.GenerateStreamRequest(request=asked)

    async def call() -> None:
        async for _ in stub.GenerateStream(request, timeout=60, metadata=metadata):
            pass

    return call


def _message(worker: WorkerRecord, known: KnownTenant, prompt: PackedTokens) -> worker_pb2.ExecuteRequest:
    claims = RequestClaims(
        domain=known.domain("", worker.model, worker.kv_format),
        request_id="bench",
        incarnation=worker.incarnation,
        expires_unix_s=time.time() + _TOKEN_S,
        fence_order=known.tenant.fence.order,
        control_generation=known.generation,
    )
    return worker_pb2.ExecuteRequest(
        protocol_version=PROTOCOL_VERSION,
        request_token=sign(cluster_key(MASTER), claims),
        prompt=prompt,
        sampling=worker_pb2.TokenSampling(top_p=1.0, max_tokens=_WORKER_TOKENS, n=1),
        cache_mode=pb.CachePolicy.MODE_READ_WRITE,
    )


def _execute(channel: grpc.aio.Channel, message: worker_pb2.ExecuteRequest) -> Callable[[], Awaitable[None]]:
    """As routers send them: of those that a router traces, ten a second, the trace's context comes along."""
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    numbers = itertools.count()
    traced_s = [0.0]

    async def call() -> None:
        metadata = None
        if (now_s := time.monotonic()) - traced_s[0] >= 1 / TRACES_PER_S:
            traced_s[0] = now_s
            metadata = (("traceparent", f"00-{next(numbers) + 1:032x}-{1:016x}-01"),)
        async for _ in stub.Execute(message, timeout=60, metadata=metadata):
            pass

    return call


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.telemetry", description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--calls", type=int, default=1_200, help="of each router in a round")
    parser.add_argument("--worker-calls", type=int, default=250, help="of each worker in a round")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--traces-per-s", type=int, default=TRACES_PER_S)
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-telemetry.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
