"""Partitions between router and worker, worker and Redis, router and Redis; each process in a network of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.client.async_client import AsyncStemcacheClient
from services.client.errors import ApiUnauthenticatedError, ApiUnavailableError
from services.client.purge_scope import PurgePartition
from services.client.requests import GenerationRequest, Sampling, Tokens
from services.tenants.directory import CONTROL_AGE_BOUND_S
from tests.chaos.cluster import Cluster, Layout, Seat, running_cluster
from tests.chaos.faults.course import Extent, eventually, hit_rate, longest_silence_s, until_flowing, until_recovered
from tests.chaos.load import Load, Shape
from tests.chaos.network import Network, running_network
from tests.chaos.outcome import Outcome
from tests.chaos.store import Place

LONG = Shape(num_streams=44, max_tokens=60)
SHORT = Shape(num_streams=44, max_tokens=24)
CUT_S = 22.0
RECOVER_S = 15.0
PROMPT = Tokens(tuple(range(5, 105)))
PART = "part"


@asynccontextmanager
async def _apart(folder: Path, shape: Shape) -> AsyncIterator[tuple[Cluster, Network, Load]]:
    """A cluster each of whose processes has a network of its own, under load."""
    with running_network(("w0", "w1", "r0", "r1", "store")) as network:
        seats = {name: Seat(node.address, node.prefix) for name, node in network.nodes.items()}
        store = network.nodes["store"]
        layout = Layout(
            workers=("w0", "w1"),
            worker_told={"digest_step_s": 0.1},
            seats=seats,
            store=Place(store.address, 6379, store.prefix),
        )
        async with running_cluster(folder, layout) as cluster:
            yield cluster, network, cluster.load(shape)


def _flowing(load: Load, worker: str, at_s: float) -> int:
    return sum(each.is_streaming(at_s) and each.first_worker == worker for each in load.streams)


async def router_from_worker(folder: Path, extent: Extent) -> Outcome:
    """Neither router hears of one worker, which goes on renewing its lease."""
    outcome = Outcome("partition router | worker", "streaming from the worker")
    async with _apart(folder, LONG) as (cluster, network, load):
        async with load.running():
            await until_flowing(load, 76)
            hit_s = time.time()
            for router in cluster.routers:
                network.cut(router, "w0")
            await _through(load, outcome, "w0", hit_s)
            mended_s = time.time()
            for router in cluster.routers:
                network.mend(router, "w0")
            await _back(load, outcome, "w0", mended_s)
        outcome.count(load)
        await cluster.until_idle(60.0)
        outcome.claim("the worker let go of what it had been asked", True)
    return outcome


async def worker_from_store(folder: Path, extent: Extent) -> Outcome:
    """A worker cannot renew its lease and hears of no purge."""
    outcome = Outcome("partition worker | Redis", "streaming from the worker")
    async with _apart(folder, LONG) as (cluster, network, load):
        async with _client(cluster, "globex", "r0") as client:
            await client.cache.warm(PROMPT, partition=PART)
            async with load.running():
                await until_flowing(load, 76)
                hit_s = time.time()
                network.cut("w0", "store")
                await client.cache.purge(PurgePartition(PART))
                await _through(load, outcome, "w0", hit_s)
                mended_s = time.time()
                network.mend("w0", "store")
                await _back(load, outcome, "w0", mended_s)
            outcome.count(load)
            usage = await client.cache.warm(PROMPT, partition=PART)
            outcome.claim("what was purged meanwhile is not found", usage.cached_tokens == 0)
        await cluster.until_idle(60.0)
    return outcome


async def router_from_store(folder: Path, extent: Extent) -> Outcome:
    """A router hears of no purge and of no revoked key."""
    outcome = Outcome("partition router | Redis", "in flight at the router")
    async with _apart(folder, SHORT) as (cluster, network, load):
        made = await asyncio.to_thread(_make_key, cluster, "r1")
        async with (
            _client(cluster, "acme", "r0") as here,
            _client(cluster, "acme", "r1") as there,
            AsyncStemcacheClient(cluster.routers["r0"].address, made[1]) as doomed,
        ):
            await here.cache.warm(PROMPT, partition=PART)
            async with load.running():
                await until_flowing(load, 76)
                before, hit_s = hit_rate(load, load.begun_since(0.0)[-60:]), time.time()
                mine = [each for each in load.streams if each.tenant == "acme" and not each.had_ended(hit_s)]
                outcome.in_phase = len(mine)
                network.cut("r0", "store")
                await there.cache.purge(PurgePartition(PART))
                await asyncio.to_thread(_revoke, cluster, "r1", made[0])
                await asyncio.sleep(CONTROL_AGE_BOUND_S + 2.0)
                outcome.recovery_s = longest_silence_s(mine, hit_s)
                stale_s = time.time()
                usage = await _ask(here)
                outcome.claim("past the bound it serves, and finds nothing that was purged elsewhere", usage == 0)
                outcome.claim(
                    "past the bound it serves nobody by a key that was revoked elsewhere", await _refused(doomed)
                )
                await asyncio.sleep(CUT_S - CONTROL_AGE_BOUND_S - 2.0)
                mended_s = time.time()
                late = [s for s in load.streams if s.tenant == "acme" and stale_s < s.sent_s < mended_s and s.tokens]
                reused = [each for each in late if each.cached_tokens or not each.degraded]
                outcome.claim(f"past the bound {len(late)} requests were served, none with reuse", late and not reused)
                network.mend("r0", "store")
                found = await until_recovered(load, mended_s, 0.9 * before, RECOVER_S)
                outcome.recovery_s = max(outcome.recovery_s, time.time() - mended_s if found is None else found)
                outcome.recovered_when = "no stream waited longer, and hits were back after it"
                outcome.claim(f"all is well within {RECOVER_S:.0f} s", outcome.recovery_s <= RECOVER_S)
                outcome.claim("the revoked key is refused", await _refused(doomed))
            outcome.count(load)
    return outcome


async def _through(load: Load, outcome: Outcome, worker: str, hit_s: float) -> None:
    """The time of the cut: what streamed from the worker has to go on elsewhere."""
    mine = [each for each in load.streams if each.is_streaming(hit_s) and each.first_worker == worker]
    outcome.in_phase = len(mine)
    await asyncio.sleep(CUT_S)
    outcome.recovery_s = longest_silence_s(mine, hit_s)
    outcome.recovered_when = "no stream from it had waited longer for a token"
    outcome.claim(f"within {RECOVER_S:.0f} s", outcome.recovery_s <= RECOVER_S)
    late = [each for each in load.streams if hit_s + 5.0 < each.sent_s and each.begun_s]
    outcome.claim(f"{len(late)} requests were sent later and answered", late)


async def _back(load: Load, outcome: Outcome, worker: str, mended_s: float) -> None:
    def serves() -> bool:
        return any(each.first_worker == worker and each.sent_s > mended_s for each in load.streams)

    outcome.claim(f"it serves again within {RECOVER_S:.0f} s", await eventually(serves, RECOVER_S))


@asynccontextmanager
async def _client(cluster: Cluster, tenant: str, router: str) -> AsyncIterator[AsyncStemcacheClient]:
    async with AsyncStemcacheClient(cluster.routers[router].address, cluster.keys[tenant]) as client:
        yield client


async def _ask(client: AsyncStemcacheClient) -> int:
    """Cached tokens of the prompt, by a request."""
    request = GenerationRequest(PROMPT, Sampling(max_tokens=1), partition=PART)
    return (await client.generate(request)).usage.cached_tokens


async def _refused(client: AsyncStemcacheClient) -> bool:
    """Whether the key does not get an answer."""
    try:
        await client.generate(GenerationRequest(PROMPT, Sampling(max_tokens=1)))
    except (ApiUnauthenticatedError, ApiUnavailableError):
        return True
    return False


def _make_key(cluster: Cluster, router: str) -> tuple[str, str]:
    with cluster.routers[router].admin() as admin:
        made = admin.create_api_key("globex")
        return made.key.key_id, made.secret


def _revoke(cluster: Cluster, router: str, key_id: str) -> None:
    with cluster.routers[router].admin() as admin:
        admin.revoke_api_key(key_id)
