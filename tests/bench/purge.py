"""A purge of a tenant whose blocks lie on three tiers of two workers: when nothing is found, when no byte is left.

A router, two workers with the token-digest runner and an embedded Valkey, all but the last in this process, so that
their memory can be looked at. *Unreachable*: from the call until the end of the first lookup after which none finds
anything; lookups of prompts on the device, on the host and on disk are sent all the time. *Gone*: from the call until
no slot of a device or host pool holds anything and no file is left on disk.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from stemcache.v1 import cache_pb2
from stemcache.v1 import inference_pb2 as pb

from cache_store.tokens import pack
from services.cluster.valkey import EmbeddedValkey
from tests.support.router_host import Cluster, eventually, running_cluster, tokens_request
from worker.config import NumBlocks
from worker.digest_rule import POISON
from worker.digest_runner import DigestRunner
from worker.engine import Engine
from worker.host import WorkerHost

NUM_WORKERS, BLOCK_SIZE, PROMPT_BLOCKS = 2, 16, 500
VOCABULARY = 32_000
POLL_S = 0.05
GIVE_UP_S = 120.0


@dataclass(frozen=True, slots=True)
class PurgeTimes:
    """Seconds from the call."""

    num_blocks: tuple[int, int, int]
    """That lay on device, host and disk."""
    num_told: int
    """Of them, those that the workers' acknowledgements counted: one that takes longer comes without its count."""
    num_acknowledged: int
    """Workers that did so in time; the others are told as pending and have forgotten it none the less."""
    returned_s: float
    unreachable_s: float
    gone_s: float
    num_lookups_after: int
    """Lookups since then."""


@dataclass(frozen=True, slots=True)
class _Look:
    begin_s: float
    end_s: float
    num_found: int
    """Tokens."""


def measure_purge(num_blocks: int) -> PurgeTimes:
    """Fills both workers and purges everything. `num_blocks`: of the tenant in all."""
    with tempfile.TemporaryDirectory(prefix="sc-") as folder, EmbeddedValkey.start(Path(folder)) as valkey:
        return asyncio.run(_measure(valkey, Path(folder), num_blocks))


async def _measure(valkey: EmbeddedValkey, folder: Path, num_blocks: int) -> PurgeTimes:
    each = num_blocks // NUM_WORKERS
    worker = {
        "pool": NumBlocks(each // 4),
        "host_pool": NumBlocks(each // 4),
        "disk_pool": NumBlocks(each),
        "disk_folder": folder / "disk",
        "eviction_policy": "lru",
    }
    async with running_cluster(valkey.urls, folder, workers=(worker,) * NUM_WORKERS) as cluster:
        prompts = await _fill(cluster, num_blocks)
        return await _purge(cluster, folder / "disk", prompts)


async def _fill(cluster: Cluster, num_blocks: int) -> list[tuple[int, ...]]:
    """Sends prompts until the tenant has as many blocks; returns them."""
    rng = random.Random(7)
    prompts: list[tuple[int, ...]] = []
    while sum(sum(_used(host)) for host in cluster.workers) < num_blocks:
        prompts.append(tuple(rng.randrange(VOCABULARY) for _ in range(PROMPT_BLOCKS * BLOCK_SIZE)))
        await cluster.acme.generate(tokens_request(prompts[-1], max_tokens=1))
    return prompts


def _used(host: WorkerHost) -> tuple[int, int, int]:
    """Blocks of all tenants on device, host and disk, as the worker last told."""
    load = host.record().load
    on_host, on_disk = load.tiers
    return load.used_blocks, on_host.used_blocks, on_disk.used_blocks


async def _purge(cluster: Cluster, disk: Path, prompts: Sequence[tuple[int, ...]]) -> PurgeTimes:
    probes = await _probes(cluster, prompts)
    engines = [await host.thread.call(lambda engine: engine, 10.0) for host in cluster.workers]
    before = [_used(host) for host in cluster.workers]
    looks: list[_Look] = []
    looking = asyncio.create_task(_keep_looking(cluster, probes, looks))
    await eventually(lambda: len(looks) > len(probes))
    request = cache_pb2.PurgeCacheRequest(everything=True)
    begin_s = time.perf_counter()
    answer = await cluster.acme.cache.PurgeCache(request, timeout=60.0, metadata=cluster.acme.metadata)
    returned_s = time.perf_counter() - begin_s
    while any(map(_num_left, engines)) or _has_files(disk):
        await asyncio.sleep(POLL_S)
        if time.perf_counter() - begin_s > GIVE_UP_S:
            raise RuntimeError(f"left: {[_num_left(engine) for engine in engines]}, files {_has_files(disk)}")
    gone_s = time.perf_counter() - begin_s
    looking.cancel()
    purged = answer.purged_blocks
    num_told = purged.device_blocks + purged.host_blocks + purged.disk_blocks
    num_blocks = (sum(each[0] for each in before), sum(each[1] for each in before), sum(each[2] for each in before))
    last_found_s = max(look.end_s for look in looks if look.num_found)
    misses = [look for look in looks if look.begin_s >= last_found_s]
    return PurgeTimes(
        num_blocks, num_told, answer.acknowledged_workers, returned_s, misses[0].end_s - begin_s, gone_s, len(misses)
    )


async def _probes(cluster: Cluster, prompts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """A prompt for each tier, most of which lies there. Raises RuntimeError where there is none."""
    probes: dict[str, tuple[int, ...]] = {}
    for prompt in reversed(prompts):
        match = (await _lookup(cluster, prompt)).matched_by_tier
        tokens = {"device": match.device_tokens, "host": match.host_tokens, "disk": match.disk_tokens}
        tier = max(tokens, key=lambda each: tokens[each])
        if tokens[tier]:
            probes.setdefault(tier, prompt)
        if len(probes) == len(tokens):
            return list(probes.values())
    raise RuntimeError(f"nothing but {', '.join(probes)} holds the beginning of any prompt")


async def _keep_looking(cluster: Cluster, probes: Sequence[tuple[int, ...]], looks: list[_Look]) -> None:
    """Until it is cancelled."""
    for probe in itertools.cycle(probes):
        begin_s = time.perf_counter()
        found = await _lookup(cluster, probe)
        looks.append(_Look(begin_s, time.perf_counter(), found.matched_tokens))


async def _lookup(cluster: Cluster, prompt: tuple[int, ...]) -> cache_pb2.LookupPrefixResponse:
    message = cache_pb2.LookupPrefixRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(packed=pack(prompt))))
    answer: cache_pb2.LookupPrefixResponse = await cluster.acme.cache.LookupPrefix(
        message, timeout=10.0, metadata=cluster.acme.metadata
    )
    return answer


def _num_left(engine: Engine) -> int:
    """Words in the pools of device and host that hold anything."""
    runner = engine._runner
    assert isinstance(runner, DigestRunner)
    pools = [*runner.pools, runner.copier.host.view(np.uint64)]
    return sum(int((pool != POISON).sum()) for pool in pools)


def _has_files(disk: Path) -> bool:
    names = (name for _, _, names in os.walk(disk) for name in names)  # folders may go while they are looked through
    return any(name != "lock" for name in names)
