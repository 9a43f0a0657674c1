"""A real worker with all tiers, and how a test brings a prompt down to one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stemcache.worker.v1 import worker_pb2

from cache_store.clock import SystemClock
from cache_store.domain import Domain
from cache_store.policies.choice import PolicyKind
from cache_store.registry import PROTOCOL_VERSION
from cache_store.tier_kind import TierKind
from cache_store.tokens import pack
from cache_store.usage import CachedTokens, TierLoad
from tests.support.worker_host import WorkerClient, client_of, digest_config
from worker.build import build_runner
from worker.config import NumBlocks, WorkerConfig
from worker.host import WorkerHost, WorkerParts
from worker.publisher import Stores
from worker.runner import Runner

BLOCK_SIZE = 16
NOTHING = CachedTokens()


@dataclass(frozen=True, slots=True)
class Sizes:
    """Blocks of each tier."""

    device: int
    host: int
    disk: int


ROOMY = {
    TierKind.DEVICE: Sizes(64, 64, 64),
    TierKind.HOST: Sizes(16, 64, 64),
    TierKind.DISK: Sizes(16, 8, 64),
}
"""Where a prompt of few blocks gets to a tier, with room in it for others."""


def tiered_config(sizes: Sizes, folder: Path, **changes: Any) -> WorkerConfig:
    """Of a worker of the token-digest runner; its order is plain, so that a test knows what goes first."""
    return digest_config(
        **{
            "pool": NumBlocks(sizes.device),
            "host_pool": NumBlocks(sizes.host),
            "disk_pool": NumBlocks(sizes.disk),
            "disk_folder": folder,
            "eviction_policy": PolicyKind.LRU,
        }
        | changes
    )


@dataclass(frozen=True, slots=True)
class TieredWorker:
    """A running worker, and its insides."""

    host: WorkerHost
    client: WorkerClient
    runner: Runner

    async def lookup(self, domain: Domain, prompt: Sequence[int]) -> worker_pb2.LookupPrefixResponse:
        """The raw answer."""
        message = worker_pb2.LookupPrefixRequest(
            protocol_version=PROTOCOL_VERSION, request_token=self.client.token(domain), prompt=pack(prompt)
        )
        response: worker_pb2.LookupPrefixResponse = await self.client.stub.LookupPrefix(message, timeout=20)
        return response

    async def matched(self, domain: Domain, prompt: Sequence[int]) -> CachedTokens:
        """What a request would find; changes nothing."""
        tiers = (await self.lookup(domain, prompt)).matched_by_tier
        return CachedTokens(tiers.device_tokens, tiers.host_tokens, tiers.disk_tokens)

    async def run(self, domain: Domain, prompt: Sequence[int], **sampling: Any) -> list[worker_pb2.ExecuteResponse]:
        """All messages of a request."""
        message = self.client.message(domain, prompt, **({"max_tokens": 1} | sampling))
        return [response async for response in self.client.call(message)]

    async def cached(self, domain: Domain, prompt: Sequence[int]) -> CachedTokens:
        """What a request finds."""
        tiers = (await self.run(domain, prompt))[0].started.cached_by_tier
        return CachedTokens(tiers.device_tokens, tiers.host_tokens, tiers.disk_tokens)

    async def sink(self, domain: Domain, prompt: Sequence[int], tier: TierKind) -> None:
        """Brings the full blocks of `prompt`, which is not cached yet, down to a tier, by other prompts."""
        num_tokens = (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
        await self.run(domain, prompt)
        for number in range(30):
            if getattr(await self.matched(domain, prompt), tier) == num_tokens:
                return
            first = 10_000 + 64 * number
            await self.run(domain, range(first, first + 64))
        raise TimeoutError(f"the prompt has not come to the {tier}: {await self.matched(domain, prompt)}")

    async def tiers(self) -> dict[TierKind, TierLoad]:
        """Counts of the lower tiers."""
        loads = await self.host.thread.call(lambda engine: engine.load().tiers, 20)
        return {load.tier: load for load in loads}


@asynccontextmanager
async def tiered_worker(
    config: WorkerConfig, connect_stores: Callable[[WorkerConfig], Stores]
) -> AsyncIterator[TieredWorker]:
    """Runs a worker on this loop until the block ends."""
    runners: list[Runner] = []

    def build(config: WorkerConfig) -> Runner:
        runners.append(build_runner(config))
        return runners[-1]

    host = await WorkerHost.start(config, WorkerParts(build, connect_stores, SystemClock()))
    try:
        async with client_of(host) as client:
            yield TieredWorker(host, client, runners[0])
    finally:
        await host.stop()
