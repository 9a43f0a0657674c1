"""One tenant's bytes after a purge: looked for in every place where they were, and not found.

The worker and its stores are real; its pools, its folder on disk and all of Redis are read raw. What is looked for are
keys and values (as an independent computation of them has it), token ids, digests and the domain's root. Before the
purge the same search finds them, and afterwards it still finds those of another tenant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stemcache.worker.v1 import worker_pb2

from cache_store.digest import chain
from cache_store.domain import Domain, Epoch
from cache_store.fence import Fence, FenceNotice
from cache_store.fence_document import sign_notice
from cache_store.registry import PROTOCOL_VERSION
from cache_store.tier_kind import TierKind
from cache_store.tokens import pack
from cache_store.usage import CachedTokens
from tests.support.domains import make_domain
from tests.support.raw_places import (
    buffer_bytes,
    device_bytes,
    disk_bytes,
    found_in,
    host_bytes,
    num_files,
    redis_bytes,
)
from tests.support.redis_servers import RedisServer
from tests.support.router_host import eventually
from tests.support.step_driver import Driver
from tests.support.tiered_worker import BLOCK_SIZE, NOTHING, Sizes, TieredWorker, tiered_config, tiered_worker
from tests.support.tiny_models import kernel_cache, tiny_model
from tests.support.worker_host import CLUSTER_KEY
from worker.build import build_runner, connect_stores
from worker.config import RunnerKind, WorkerConfig
from worker.digest_rule import make_records

SIZES = Sizes(device=24, host=24, disk=256)
PROMPT_TOKENS = 65
"""Four full blocks, and the token that is always computed."""
NUM_TOKEN_IDS = 180
CANARY, BYSTANDER = "canary", "bystander"
FIRST_TOKEN_IDS = {CANARY: 3, BYSTANDER: 190}
SCRUBBED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Traces:
    """What a tenant's prompts leave."""

    kv: frozenset[bytes]
    """Pieces of keys and values, some of every block."""
    words: frozenset[bytes]
    """Token ids of blocks."""
    names: frozenset[bytes]
    """Digests of blocks, and the domain's root."""
    tag: frozenset[bytes]
    """The domain's public name."""

    @property
    def all(self) -> frozenset[bytes]:
        return self.kv | self.words | self.names | self.tag


def prompts(first: int) -> list[list[int]]:
    """Prompts of NUM_TOKEN_IDS token ids: values of the first layer follow from a token alone."""
    return [
        [first + (7 * number + 3 * place) % NUM_TOKEN_IDS for place in range(PROMPT_TOKENS)] for number in range(24)
    ]


def digest_kv(_: WorkerConfig, prompts: Iterable[Sequence[int]]) -> set[bytes]:
    """First record of every block of the token-digest runner, by its rule."""
    records = (make_records(np.array(prompt, dtype=np.uint64), 0) for prompt in prompts)
    return {record.tobytes() for each in records for record in each[::BLOCK_SIZE]}


def torch_kv(config: WorkerConfig, prompts: Iterable[Sequence[int]]) -> set[bytes]:
    """First keys and values of every block and layer, computed by a runner that has nothing below its device."""
    runner: Any = build_runner(replace(config, host_pool=None, disk_pool=None, disk_folder=None))
    pieces: set[bytes] = set()
    for prompt in prompts:
        driver = Driver(runner)
        track = driver.start(prompt)
        driver.step((track, len(prompt)))
        for group, table in zip(runner.pools.groups, track.tables, strict=True):
            for slot in table:
                parts = (*group.keys[slot], *group.values[slot])
                pieces |= {part[0].numpy().tobytes() for part in parts}
    return pieces


def traces(config: WorkerConfig, domain: Domain, sent: Sequence[Sequence[int]]) -> Traces:
    """Of the full blocks of the prompts that were sent."""
    kv = digest_kv if config.runner is RunnerKind.DIGEST else torch_kv
    starts = range(0, PROMPT_TOKENS - 1, BLOCK_SIZE)
    return Traces(
        kv=frozenset(kv(config, sent)),
        words=frozenset(bytes(pack(prompt[start : start + BLOCK_SIZE])) for prompt in sent for start in starts),
        names=frozenset({*(digest for prompt in sent for digest in chain(domain, pack(prompt), BLOCK_SIZE))})
        | {domain.root},
        tag=frozenset({bytes(domain.tag), domain.tag.hex().encode()}),
    )


async def fill(worker: TieredWorker, prompts: dict[Domain, list[list[int]]]) -> dict[Domain, list[list[int]]]:
    """Sends prompts of all domains in turn until each has blocks on every tier; those that were sent."""
    for number in range(1, 25):
        for domain, each in prompts.items():
            await worker.run(domain, each[number - 1])
        sent = {domain: each[:number] for domain, each in prompts.items()}
        tiers = [await total(worker, domain, each) for domain, each in sent.items()]
        if all(cached.device and cached.host and cached.disk for cached in tiers):
            return sent
    raise TimeoutError(f"some tier stays empty: {tiers}")


async def total(worker: TieredWorker, domain: Domain, prompts: Iterable[Sequence[int]]) -> CachedTokens:
    """Tokens on each tier over all prompts."""
    found = [await worker.matched(domain, prompt) for prompt in prompts]
    return CachedTokens(
        sum(each.device for each in found), sum(each.host for each in found), sum(each.disk for each in found)
    )


async def purge(worker: TieredWorker, domain: Domain) -> worker_pb2.PurgeResponse:
    """Rotates the domain's tenant, as a router tells it."""
    notice = FenceNotice(domain.tenant, Fence(domain.tenant, Epoch("e2"), 1), generation=2)
    message = worker_pb2.PurgeRequest(protocol_version=PROTOCOL_VERSION, fence=sign_notice(CLUSTER_KEY, notice))
    response: worker_pb2.PurgeResponse = await worker.client.stub.Purge(message, timeout=20)
    return response


def config_of(kind: RunnerKind, parent: Path, folder: Path, redis_url: str) -> WorkerConfig:
    """A small worker over the token-digest runner, or over a tiny model. `folder` is its disk."""
    config = tiered_config(SIZES, folder, redis_url=redis_url)
    if kind is RunnerKind.DIGEST:
        return config
    model = tiny_model("llama", parent)
    return replace(config, runner=kind, model_name="tiny", model_folder=model, cache_dir=kernel_cache(parent))


@pytest.mark.parametrize("kind", RunnerKind)
async def test_nothing_of_a_purged_tenant_is_found_anywhere(
    kind: RunnerKind, tmp_path: Path, redis_server: RedisServer
) -> None:
    folder = tmp_path / "disk"
    config = config_of(kind, tmp_path, folder, redis_server.urls.worker)
    async with tiered_worker(config, connect_stores) as worker:
        kv_format = worker.host.model.kv_format.digest()
        canary, bystander = (make_domain(name, kv_format=kv_format) for name in FIRST_TOKEN_IDS)
        sent = await fill(worker, {each: prompts(FIRST_TOKEN_IDS[each.tenant]) for each in (canary, bystander)})
        mine, theirs = (traces(config, domain, sent[domain]) for domain in (canary, bystander))
        assert mine.all.isdisjoint(theirs.all)

        def places() -> dict[str, bytes]:
            return {
                "device": device_bytes(worker.runner),
                "host": host_bytes(worker.runner),
                "disk": disk_bytes(folder),
                "redis": redis_bytes(redis_server),
            }

        with suppress(AssertionError):  # the index hears of it a moment later, and so does the disk
            await eventually(lambda: found_in(places(), mine.kv | theirs.names) == {"device", "host", "redis"})
        before = places()
        for each in (mine, theirs):
            assert found_in(before, each.kv) == {"device", "host"}, "on disk they are sealed"
            assert found_in(before, each.names | each.tag) == {"redis"}
        kept = await total(worker, bystander, sent[bystander])

        response = await purge(worker, canary)
        purged = response.purged_blocks
        assert min(purged.device_blocks, purged.host_blocks, purged.disk_blocks) > 0
        assert await total(worker, canary, sent[canary]) == NOTHING
        with suppress(AssertionError):  # what follows says where something is
            await eventually(lambda: not found_in(places(), mine.all), SCRUBBED_WITHIN_S)
        after = {**places(), "buffers": buffer_bytes(worker.runner)}
        for each in (mine.kv, mine.words, mine.names, mine.tag):
            assert found_in(after, each) == set()
        on_disk = (await worker.tiers())[TierKind.DISK].used_blocks
        with suppress(AssertionError):
            await eventually(lambda: num_files(folder) == on_disk, SCRUBBED_WITHIN_S)
        assert num_files(folder) == on_disk

        assert await total(worker, bystander, sent[bystander]) == kept
        assert found_in(after, theirs.kv) == {"device", "host"}
        assert found_in(after, theirs.names | theirs.tag) == {"redis"}
        [last] = sent[bystander][-1:]
        assert (await worker.cached(bystander, last)).total == PROMPT_TOKENS - 1
