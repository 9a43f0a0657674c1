"""What metrics and tracing cost: `python -m tests.bench.telemetry`, or `make bench-telemetry`.

Two routers over the same workers, and two workers asked straight, each in a process of its own: one of each pair with
metrics and tracing off, one with both on, scraped every second and sending spans to a collector. Token-digest runners
without time of their own, so that only bookkeeping is measured. A ratio is that of one round, on against off: of calls
per second of processor time of the process, while both are asked at once, and of calls per second, while one after the
other is asked for as long, in random order. The median of all rounds is told, with the middle half of them. Two
processes of one program differ by a per cent or two from start to start: so all are started anew several times, and
hash as the others do.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
import uvloop

from cache_store.redis_registry import RedisRegistryReader
from cache_store.redis_session import RedisSession
from cache_store.registry import WorkerRecord
from cache_store.telemetry.spans import TRACES_PER_S
from cache_store.tokens import pack
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from services.tenants.directory import KnownTenant
from services.tenants.master_key import cluster_key
from tests.bench.machine import ROOT, print_table, verdict, versions
from tests.bench.record import Record
from tests.bench.router.processes import Listening, listening
from tests.bench.telemetry.collector import Collector, counting
from tests.bench.telemetry.measure import CONCURRENCY, Pair, Ratios, spread
from tests.bench.telemetry.sides import WORKER_TOKENS, execute, generate, message_for
from tests.support.router_host import MASTER, Tenant, eventually_async, operator_store, until_served
from tests.support.scrapes import fetch

MIN_RATIO = 0.97
ROUTER, WORKER = "router", f"worker, {WORKER_TOKENS} tokens each"
SCRAPE_S = 1.0
_READY_S = 60.0
_WARM_S = 1.0


def main() -> None:
    arguments = _arguments()
    record = Record.begin()
    found = {ROUTER: Ratios(), WORKER: Ratios()}
    for start in range(arguments.starts):
        with (
            tempfile.TemporaryDirectory(prefix="sc-") as folder,
            EmbeddedValkey.start(Path(folder) / "valkey") as server,
        ):
            uvloop.run(_measure(arguments, server.urls, Path(folder), random.Random(start), found))
    _print(found)
    print(
        f"{arguments.starts} starts of {arguments.rounds} rounds of {arguments.seconds:g} s for each, {CONCURRENCY} "
        f"at once, {arguments.tokens} prompt tokens, at most {arguments.traces_per_s} traces a second"
    )
    figures = {
        "concurrency": CONCURRENCY,
        "min_ratio": MIN_RATIO,
        "processes": {
            name: {"cpu": spread(each.cpu), "rate": spread(each.rate), "calls_per_s_off": _rate(each)}
            for name, each in found.items()
        },
    }
    raw = {name: asdict(each) for name, each in found.items()}
    record.write(arguments, figures=figures, raw=raw, versions=versions("grpcio", "uvloop", "opentelemetry-sdk"))


def _print(found: dict[str, Ratios]) -> None:
    print_table(
        ("on against off", "calls per core", "middle half", "calls/s", "middle half", "calls/s off"),
        [(name, *_cells(each.cpu), *_cells(each.rate), f"{_rate(each):,.0f}") for name, each in found.items()],
    )
    for name, each in found.items():
        for what, ratios in (("calls per core", each.cpu), ("calls/s", each.rate)):
            ratio = statistics.median(ratios)
            print(f"  {name}, {what} >= {MIN_RATIO:g}: {ratio:.3f}, {verdict(-ratio, -MIN_RATIO)}")


def _cells(ratios: Sequence[float]) -> tuple[str, str]:
    middle, low, high = spread(ratios)
    return f"{middle:.3f}", f"{low:.3f}-{high:.3f}"


def _rate(ratios: Ratios) -> float:
    return statistics.median(both.off.calls / both.off.took_s for both in ratios.in_turn)


async def _measure(
    arguments: argparse.Namespace, urls: RoleUrls, folder: Path, order: random.Random, found: dict[str, Ratios]
) -> None:
    """One start of all processes, and its rounds."""
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(counting())
        pairs = await _pairs(arguments, urls, folder, collector, stack)
        shown = [pair.processes[1] for pair in pairs]
        await stack.enter_async_context(_scraping(shown))
        for pair in pairs:
            await pair.warm(_WARM_S)
        for _ in range(arguments.rounds):
            for pair in pairs:
                await pair.together(arguments.seconds, found[pair.name])
                await pair.in_turn(order, arguments.seconds, found[pair.name])
        if not collector.num_bytes:
            raise RuntimeError("no spans came: it is not what was to be measured")


async def _pairs(
    arguments: argparse.Namespace, urls: RoleUrls, folder: Path, collector: Collector, stack: AsyncExitStack
) -> tuple[Pair, Pair]:
    seen = {"metrics": True, "otlp": collector.endpoint, "traces_per_s": arguments.traces_per_s}
    sights: tuple[dict[str, Any], ...] = ({}, seen)
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
    messages = [message_for(_record_of(records, each), known, prompt) for each in workers]
    off, on = (generate(channel, key, prompt) for channel in generating)
    router = Pair(ROUTER, (off, on), (routers[0], routers[1]))
    pairs = zip(executing, messages, strict=True)
    off, on = (execute(channel, message, arguments.traces_per_s) for channel, message in pairs)
    return router, Pair(WORKER, (off, on), (workers[0], workers[1]))


@asynccontextmanager
async def _scraping(processes: Sequence[Listening]) -> AsyncIterator[None]:
    async def scrape() -> None:
        while True:
            for process in processes:
                await fetch(process.metrics_address)
            await asyncio.sleep(SCRAPE_S)

    task = asyncio.create_task(scrape())
    yield
    if task.done():
        task.result()
    task.cancel()


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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.telemetry", description=__doc__)
    parser.add_argument("--starts", type=int, default=3, help="times that all processes are started")
    parser.add_argument("--rounds", type=int, default=10, help="of each start")
    parser.add_argument("--seconds", type=float, default=0.6, help="that each process is asked in a round")
    parser.add_argument("--tokens", type=int, default=512, help="of each prompt")
    parser.add_argument("--traces-per-s", type=int, default=TRACES_PER_S)
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-telemetry.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
