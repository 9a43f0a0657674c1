"""Faults of routers: one is killed under load, with another one behind it."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from tests.chaos.cluster import Layout, running_cluster
from tests.chaos.faults.course import Extent, eventually
from tests.chaos.load import Shape
from tests.chaos.outcome import Outcome

BURST = Shape(num_streams=50, prefix_tokens=16, suffix_tokens=145, max_tokens=16)


async def kill_router(folder: Path, extent: Extent) -> Outcome:
    """The first router of one tenant's clients is killed while most of its requests have no token yet.

    The others go on at the other router, too, by the client.
    """
    outcome = Outcome("router killed", "at the router before their first token")
    layout = Layout(workers=("w0", "w1"), worker_told={"digest_step_s": 0.05, "digest_token_s": 0.0007})
    async with running_cluster(folder, layout) as cluster:
        load = cluster.load(BURST)
        async with load.running():
            await asyncio.sleep(1.5)
            hit_s = time.time()
            cluster.routers["r0"].child.send(signal.SIGKILL)
            there = [each for each in load.streams if each.tenant == "acme" and not each.had_ended(hit_s)]
            waiting = [each for each in there if each.is_waiting(hit_s)]
            outcome.in_phase = len(waiting)
            begun = await eventually(lambda: all(each.begun_s or each.error for each in waiting), 60.0)
            outcome.claim("all of them had their answer from the other router", begun)
            outcome.recovery_s = max((each.begun_s or time.time()) - hit_s for each in waiting)
            outcome.recovered_when = "the last of them had its first token"
            since_s = time.time()
            await cluster.routers["r0"].child.end()
            await cluster.routers["r0"].child.start()
            await cluster.until_listening(cluster.routers["r0"], since_s)
            await cluster.until_seen(2)
        streaming = [each for each in there if each.is_streaming(hit_s)]
        outcome.claim(
            f"{len(streaming)} streams that had begun went on at the other router",
            streaming and not any(each.error for each in there),
        )
        outcome.count(load)
        await cluster.until_idle()
        outcome.claim("workers let go of what the dead router had asked for", True)
    return outcome
