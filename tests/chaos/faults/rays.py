"""Faults of Ray: its GCS is killed, away for more than a minute, and back. Workers are detached actors."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from services.cluster.router_part import free_port
from services.tenants.master_key import cluster_key
from tests.chaos.cluster import Layout, running_cluster
from tests.chaos.faults.course import Extent, longest_silence_s, until_flowing
from tests.chaos.load import Load, Shape
from tests.chaos.outcome import Outcome
from tests.chaos.ray_head import RayHead
from tests.chaos.store import Place
from tests.support.router_host import MASTER

AWAY_S = 70.0
"""Longer than Ray's processes wait for it unless they are told otherwise, and than the minute that is promised."""
NAMES = ("w0", "w1")


async def gcs_killed(folder: Path, extent: Extent) -> Outcome:
    """Streams and new requests go on without it and after it; nothing is started twice."""
    outcome = Outcome("Ray's GCS killed", "in flight when it was killed")
    port = free_port("127.0.0.1")
    layout = Layout(workers=(), store=Place("127.0.0.1", port))
    async with running_cluster(folder, layout) as cluster:
        with ExitStack() as stack:
            head = RayHead(f"127.0.0.1:{port}", *cluster.store.chaos_user)
            stack.callback(head.close)
            await asyncio.to_thread(head.start)
            told = {"redis_url": cluster.store.urls.worker, "cluster_key": cluster_key(MASTER).hex()}
            workers = [{"worker_id": name, "pool": 4_096, "digest_step_s": 0.08, **told} for name in NAMES]
            placed = await head.launch({"workers": workers})
            await cluster.until_seen(len(NAMES))
            load = cluster.load(Shape(num_streams=22, max_tokens=30))
            async with load.running():
                await until_flowing(load, 35)
                pids, hit_s = head.worker_pids(), time.time()
                outcome.claim(f"each worker is one process ({len(pids)})", len(pids) == len(NAMES))
                flowing = [each for each in load.streams if each.is_waiting(hit_s) or each.is_streaming(hit_s)]
                outcome.in_phase = len(flowing)
                head.kill_gcs()
                outcome.claim("it is away", not head.has_gcs())
                await _away(load, outcome, hit_s)
                outcome.claim("the same processes run", head.worker_pids() == pids)
                outcome.recovery_s = longest_silence_s(flowing, hit_s)
                outcome.recovered_when = "no stream had waited longer for a token"
                head.restart_gcs()
                found = await head.launch({})
                outcome.claim("back, it knows the workers as they were placed", found == placed)
                await asyncio.sleep(10.0)
                outcome.claim("nothing was started twice", head.worker_pids() == pids)
                await _restart_works(head, placed, outcome)
            outcome.count(load)
            outcome.claim("no request failed, early or late", not outcome.errors)
    return outcome


async def _away(load: Load, outcome: Outcome, hit_s: float) -> None:
    await asyncio.sleep(AWAY_S)
    late = [each for each in load.streams if each.sent_s > hit_s + AWAY_S - 10 and each.begun_s]
    outcome.claim(f"{len(late)} requests were sent a minute later and answered", late)


async def _restart_works(head: RayHead, placed: dict[str, list[str]], outcome: Outcome) -> None:
    """Back, it does its work again: a worker that is killed is started again."""
    name = NAMES[0]
    os.kill(int(placed[name][1]), signal.SIGKILL)
    deadline_s = time.monotonic() + 60.0
    while time.monotonic() < deadline_s:
        await asyncio.sleep(1.0)
        pids = head.worker_pids()
        if len(pids) == len(NAMES) and placed[name][1] not in pids:
            break
    found = await head.launch({})
    outcome.claim("a worker that is killed is started again, once", found[name][0] != placed[name][0])
    outcome.claim("the other one is as it was", found[NAMES[1]] == placed[NAMES[1]])
