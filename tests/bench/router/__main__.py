"""What the router adds: `python -m tests.bench.router`, or `make bench-router`.

A router, a plain grpc.aio proxy and token-digest workers that take no time of their own, each in a process of its own,
with an embedded Valkey. Prompts of 2,048 token ids that are cached, answers of one token. All sides are asked in turn
from one client: straight at the worker, over the proxy, and over the router. Added latency is the difference of
percentiles to the straight way. With many calls at once client, worker and what lies between share the cores: so calls
per second are also told per second of processor time of the process in between.

In the same run the routers of others that are installed, with their cache-aware policy: they speak HTTP, so they stand
in front of a worker that does, and what they add is the difference to that worker asked straight.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import grpc
import uvloop

from cache_store.redis_registry import RedisRegistryReader
from cache_store.redis_session import RedisSession
from cache_store.registry import WorkerRecord
from cache_store.tokens import PackedTokens, pack
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from services.tenants.directory import KnownTenant
from services.tenants.master_key import cluster_key
from tests.bench.machine import NOT_RUN, ROOT, print_table, verdict, versions
from tests.bench.percentiles import percentile
from tests.bench.record import Record
from tests.bench.router.http_side import HttpCalls, http_side
from tests.bench.router.measure import CONCURRENCY, Figures, measure
from tests.bench.router.peers import SGLANG_ROUTER, SMG, NotRunError, peer_router, version_of
from tests.bench.router.processes import Listening, listening
from tests.bench.router.sides import HOP, ROUTER, STRAIGHT, Messages, Side, executing, generating
from tests.support.router_host import MASTER, Tenant, eventually_async, operator_store, until_served
from tests.support.worker_process import worker_process

NUM_PROMPTS = 3
"""They fit into the worker's 512 blocks, so that they stay cached."""
MAX_ADDED, MIN_RATE = 2.0, 0.5
BLOCK_TOKENS = 16
HTTP = "straight to a worker that speaks HTTP"
_VOCABULARY = 32_000
_READY_S = 60.0


@dataclass(slots=True)
class _Peers:
    """Sides of others."""

    sides: list[Side] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    """By package, or why it was not run."""


def main() -> None:
    arguments = _arguments()
    record = Record.begin()
    with tempfile.TemporaryDirectory(prefix="sc-") as folder, EmbeddedValkey.start(Path(folder) / "valkey") as server:
        found, peers = uvloop.run(_run(arguments, server.urls, Path(folder)))
    _print(found)
    for package, version in peers.items():
        print(f"  {package}: {version}")
    print(f"prompts of {arguments.tokens:,} tokens")
    packages = versions("grpcio", "uvloop", "protobuf")
    record.write(
        arguments,
        figures={"concurrency": CONCURRENCY, "sides": {name: each.summary() for name, each in found.items()}},
        raw={name: asdict(figures) for name, figures in found.items()},
        versions=packages,
        peers=peers,
    )


async def _run(
    arguments: argparse.Namespace, urls: RoleUrls, folder: Path
) -> tuple[dict[str, Figures], dict[str, str]]:
    prompts = _prompts(arguments.tokens)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(operator_store(urls))
        tenant = await store.create_tenant("acme")
        key = (await store.create_key("acme")).value.text
        for number in range(arguments.workers):
            process = worker_process(f"worker-{number}", urls.worker, cluster_key(MASTER))
            await stack.enter_async_context(process)
        told = {"urls": asdict(urls), "folder": str(folder / "router")}
        router = await stack.enter_async_context(listening("tests.bench.router.router_process", told))
        worker = (await _workers(urls, arguments.workers))[0]
        proxy = await stack.enter_async_context(listening("tests.bench.router.proxy", {"target": worker.address}))
        peers = await _peers(arguments, folder, stack)
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address))
            for address in (worker.address, proxy.address, router.address)
        ]
        await until_served(Tenant("acme", key, channels[2]), arguments.workers)
        known = KnownTenant(tenant.value, tenant.state.generation)
        number = NUM_PROMPTS * 700
        messages = Messages(worker, known, cluster_key(MASTER), prompts, number)
        min_cached = arguments.tokens - BLOCK_TOKENS
        sides = [
            executing(STRAIGHT, channels[0], messages, None, min_cached),
            executing(HOP, channels[1], messages, proxy, min_cached),
            generating(channels[2], key, prompts, router, min_cached),
            *peers.sides,
        ]
        found = await measure(sides, arguments.calls, arguments.rounds, arguments.calls_per_round)
        return found, peers.versions


async def _peers(arguments: argparse.Namespace, folder: Path, stack: AsyncExitStack) -> _Peers:
    """Those that are installed, each in front of one and the same worker."""
    peers = _Peers()
    worker = await stack.enter_async_context(listening("tests.bench.router.http_worker", {}))

    def side(name: str, address: str, between: Listening | None) -> Side:
        calls = HttpCalls(address, arguments.tokens, NUM_PROMPTS)
        stack.callback(calls.close)
        return http_side(name, calls, between)

    for peer, environment in ((SGLANG_ROUTER, arguments.sglang_router), (SMG, arguments.smg)):
        try:
            version = await version_of(peer, environment)
            router = peer_router(peer, environment, worker.address, folder / f"{peer.package}.log")
            between = await stack.enter_async_context(router)
        except NotRunError as error:
            peers.versions[peer.package] = f"{NOT_RUN}: {error}"
        else:
            peers.versions[peer.package] = version
            peers.sides.append(side(f"{peer.package} {version}", between.address, between))
    if peers.sides:
        peers.sides.insert(0, side(HTTP, worker.address, None))
    return peers


async def _workers(urls: RoleUrls, number: int) -> list[WorkerRecord]:
    session = RedisSession(urls.router)
    reader = RedisRegistryReader(session)

    async def joined() -> bool:
        return len(await reader.workers()) == number

    await eventually_async(joined, _READY_S)
    workers = await reader.workers()
    await session.close()
    return workers


def _prompts(num_tokens: int) -> list[PackedTokens]:
    rng = random.Random(0)
    return [pack(rng.randrange(2, _VOCABULARY) for _ in range(num_tokens)) for _ in range(NUM_PROMPTS)]


def _print(found: dict[str, Figures]) -> None:
    straight, hop, router = (found[name] for name in (STRAIGHT, HOP, ROUTER))
    rows = []
    for name, each in found.items():
        if name in (STRAIGHT, HTTP):
            base = each
        added = [f"{(each.p(share) - base.p(share)) * 1e3:.2f}" if each is not base else "-" for share in (0.5, 0.99)]
        rows.append(
            (
                name,
                *(f"{each.p(share) * 1e3:.2f}" for share in (0.5, 0.99)),
                *added,
                f"{each.cpu_rate:.0f}" if each.cpu_rate else "-",
                f"{statistics.median(each.rates):.0f}",
                f"{statistics.median(each.cpu_rates):.0f}" if each.cpu_rates else "-",
                *(f"{percentile(each.loaded_s, share) * 1e3:.1f}" for share in (0.5, 0.99)),
            )
        )
    print_table(
        (
            "",
            *("p50 ms", "p99 ms", "added p50", "added p99", "calls/s per core at 1"),
            *(f"calls/s at {CONCURRENCY}", "per core", "p50 ms", "p99 ms"),
        ),
        rows,
    )
    ratio = (router.p(0.5) - straight.p(0.5)) / (hop.p(0.5) - straight.p(0.5))
    print(f"  added p50 <= {MAX_ADDED:g} x one hop's: {ratio:.2f}, {verdict(ratio, MAX_ADDED)}")
    for name, rates in (("calls/s", "rates"), ("calls/s per core", "cpu_rates")):
        share = statistics.median(getattr(router, rates)) / statistics.median(getattr(hop, rates))
        print(
            f"  {name} at {CONCURRENCY} >= {MIN_RATE:g} x plain proxying's: {share:.2f}, {verdict(-share, -MIN_RATE)}"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.router", description=__doc__)
    parser.add_argument("--workers", type=int, default=1, help="the plain ways lead to the first one")
    parser.add_argument("--tokens", type=int, default=2_048)
    parser.add_argument("--calls", type=int, default=500, help="one after the other, of each side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls-per-round", type=int, default=1_500)
    parser.add_argument("--sglang-router", type=Path, default=ROOT / ".venv-sglang-router", help="its environment")
    parser.add_argument("--smg", type=Path, default=ROOT / ".venv-smg", help="its environment")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-router.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
