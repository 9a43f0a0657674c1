"""A worker is killed while it leaves, or while it takes what another gives: no request fails, no token is wrong."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from cache_store.errors import StemcacheError
from tests.chaos.cluster import Cluster, Layout, running_cluster
from tests.chaos.faults.course import busiest, until_flowing
from tests.chaos.load import Shape
from tests.chaos.outcome import Outcome

pytestmark = pytest.mark.slow

LAYOUT = Layout(routers=("r0",), worker_told={"digest_step_s": 0.05})
SHAPE = Shape(num_streams=12, max_tokens=40)
GRACE_S = 10.0


@pytest.mark.parametrize("victim", ["who leaves", "who takes"])
async def test_a_worker_is_killed_in_a_drain(victim: str, tmp_path: Path) -> None:
    async with running_cluster(tmp_path / "c", LAYOUT) as cluster:
        load, outcome = cluster.load(SHAPE), Outcome(f"kill -9 of {victim}", "streaming")
        async with load.running():
            await until_flowing(load, 16)
            leaving = busiest(cluster, load, time.time())
            taking = next(name for name in cluster.workers if name != leaving)
            draining = asyncio.create_task(drain(cluster, leaving))
            await asyncio.sleep(0.3)
            cluster.workers[leaving if victim == "who leaves" else taking].send(signal.SIGKILL)
            has_left = await draining
            load.stop()
        assert has_left is (victim == "who takes")
        outcome.count(load)
        assert (outcome.failed_before_first, outcome.broken_later, outcome.wrong_tokens) == (0, 0, 0), outcome.errors
        assert outcome.sent >= 24


async def drain(cluster: Cluster, worker_id: str) -> bool:
    """Whether it has left in order."""
    with cluster.routers["r0"].admin() as admin:
        try:
            await asyncio.to_thread(admin.drain_worker, worker_id, GRACE_S)
        except StemcacheError:
            return False
    return True
