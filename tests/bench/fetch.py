"""`make bench-fetch`: the first token of a prompt whose blocks another worker has, against computing it, on SmolLM2.

Two workers with edges of their own in this process, over real gRPC on loopback: sealed, compared and copied to the
device as between machines, without a network between them. Each length: the same prompt cold, fetched, and warm, in
turns; medians. The ratio is what counts; the seconds are this machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from stemcache.worker.v1 import worker_pb2

from cache_store.registry import WorkerId
from tests.bench.figures import median_ratio
from tests.bench.machine import ROOT, versions
from tests.bench.record import Record
from tests.support.domains import make_domain
from tests.support.memory_stores import MemoryStores
from tests.support.worker_host import CLUSTER_KEY, WorkerClient, client_of, running_workers
from worker.config import KvBytes, RunnerKind, WorkerConfig
from worker.host import WorkerHost
from worker.model_files.digests import default_cache_dir
from worker.torch_runner.prepare import prepare_smollm2

LENGTHS = (256, 512, 1_024, 2_048)
VOCAB_SIZE = 49_000


def worker_config(name: str) -> WorkerConfig:
    """A worker of SmolLM2."""
    cache_dir = default_cache_dir()
    return WorkerConfig(
        worker_id=WorkerId(name),
        model_name="smollm2",
        redis_url="redis://127.0.0.1:1/0",
        cluster_key=CLUSTER_KEY,
        pool=KvBytes(640 << 20),
        runner=RunnerKind.PAGED,
        model_folder=prepare_smollm2(cache_dir, print),
        cache_dir=cache_dir,
    )


async def first_token(
    client: WorkerClient, host: WorkerHost, prompt: Sequence[int], peer: worker_pb2.PeerHint | None
) -> tuple[float, int, int]:
    """Seconds to the first token, reused tokens, and how many of them came from the other worker."""
    domain = make_domain("acme", kv_format=host.model.kv_format.digest())
    message = client.message(domain, prompt, max_tokens=1)
    if peer is not None:
        message.peer.CopyFrom(peer)
    started_s = time.perf_counter()
    cached = num_peer = 0
    async for response in client.call(message, timeout_s=300):
        if response.HasField("started"):
            cached, num_peer = response.started.cached_tokens, response.started.cached_by_tier.peer_tokens
        elif response.HasField("tokens"):
            return time.perf_counter() - started_s, cached, num_peer
    raise AssertionError("no token came")


async def measure(repeats: int) -> list[dict[str, float]]:
    """Prints a row per length, and returns them."""
    rows = []
    async with AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(
            running_workers([worker_config("holder"), worker_config("asker")], MemoryStores().connect)
        )
        holder, asker = [await stack.enter_async_context(client_of(host)) for host in hosts]
        hint = worker_pb2.PeerHint(address=hosts[0].address, incarnation=hosts[0].incarnation)
        draw = random.Random(time.time_ns())
        print(f"{'tokens':>7} {'computed s':>11} {'fetched s':>10} {'warm s':>8} {'fetched/computed':>17} {'MB':>6}")
        for length in LENGTHS:
            hint.block_count = length // 16
            cold, fetched, warm = [], [], []
            for _ in range(repeats):
                prompt = [draw.randrange(VOCAB_SIZE) for _ in range(length + 1)]
                cold.append((await first_token(holder, hosts[0], prompt, None))[0])
                seconds, _, num_peer = await first_token(asker, hosts[1], prompt, hint)
                assert num_peer == length, f"{num_peer} of {length} tokens were fetched"
                fetched.append(seconds)
                warm.append((await first_token(asker, hosts[1], prompt, None))[0])
            counts = hosts[1].record().load.peers
            size_mb = counts.fetched_bytes / max(1, counts.fetched_blocks) * (length // 16) / 1e6
            row = [statistics.median(each) for each in (cold, fetched, warm)]
            ratio = median_ratio(fetched, cold)
            print(f"{length:7} {row[0]:11.3f} {row[1]:10.3f} {row[2]:8.3f} {ratio:17.3f} {size_mb:6.0f}")
            told = {"computed_s": row[0], "fetched_s": row[1], "warm_s": row[2], "ratio": ratio, "size_mb": size_mb}
            rows.append({"tokens": length, **told})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-fetch.json")
    arguments, record = parser.parse_args(), Record.begin()
    rows = asyncio.run(measure(arguments.repeats))
    record.write(arguments, figures={"rows": rows}, versions=versions("torch", "grpcio"))


if __name__ == "__main__":
    main()
