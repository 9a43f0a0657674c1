"""Faults of workers: killed while they compute prompts or answer, stopped, and back after another took their place."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from tests.chaos.cluster import Cluster, Layout, running_cluster
from tests.chaos.faults.course import (
    DETECT_S,
    Extent,
    busiest,
    by_id,
    eventually,
    longest_silence_s,
    losses,
    until_flowing,
)
from tests.chaos.load import Load, Shape
from tests.chaos.outcome import Outcome

PAIR = Layout(workers=("w0", "w1"), routers=("r0", "r1"), worker_told={"digest_step_s": 0.1})
DECODING = Shape(num_streams=45, max_tokens=60)
PREFILLING = Shape(num_streams=45, prefix_tokens=16, suffix_tokens=305, max_tokens=8)
SLOW_PROMPTS = {"digest_step_s": 0.05, "digest_token_s": 0.0007}


async def kill_in_prefill(folder: Path, extent: Extent) -> Outcome:
    """A burst of prompts; the worker that most were sent to is killed before it has answered them."""
    outcome = Outcome("kill -9, prefill", "at the worker before their first token")
    layout = Layout(workers=("w0", "w1"), routers=("r0",), worker_told=SLOW_PROMPTS)
    async with running_cluster(folder, layout) as cluster:
        load = cluster.load(PREFILLING)
        async with load.running():
            await asyncio.sleep(1.2)
            hit_s = time.time()
            cluster.workers["w0"].send(signal.SIGKILL)
            load.stop()
            await _noticed(cluster, outcome, "w0", hit_s)
        lost = losses(cluster, "w0", hit_s)
        waiting = by_id(load, (name for name, _, sent in lost if not sent))
        outcome.in_phase = sum(stream.is_waiting(hit_s) for stream in waiting)
        outcome.claim("each of them was answered by the other worker", all(s.first_worker == "w1" for s in waiting))
        outcome.claim("each says that it took two attempts", all(stream.attempts == 2 for stream in waiting))
        outcome.recovery_s = max((after_s for _, after_s, _ in lost), default=0.0)
        outcome.recovered_when = "the last of them was sent elsewhere"
        outcome.count(load)
    return outcome


async def kill_in_decode(folder: Path, extent: Extent) -> Outcome:
    """Streams flow; the worker that most come from is killed, and started again."""
    outcome = Outcome("kill -9, decode", "streaming from the worker")
    async with running_cluster(folder, PAIR) as cluster:
        load = cluster.load(DECODING)
        async with load.running():
            await until_flowing(load, 66)
            victim, hit_s = busiest(cluster, load, time.time()), time.time()
            cluster.workers[victim].send(signal.SIGKILL)
            await _noticed(cluster, outcome, victim, hit_s)
            if extent is Extent.WHOLE:
                await cluster.restart(victim)
                back_s = time.time()
                outcome.claim("the worker serves again", await eventually(lambda: _serves(load, victim, back_s), 20.0))
            else:
                load.stop()
        _count_streaming(cluster, load, outcome, victim, hit_s)
    return outcome


async def stop_and_return(folder: Path, extent: Extent) -> Outcome:
    """The busiest worker is stopped for longer than its lease, and goes on."""
    outcome = Outcome("SIGSTOP and return", "streaming from the worker")
    async with running_cluster(folder, PAIR) as cluster:
        load = cluster.load(DECODING)
        async with load.running():
            await until_flowing(load, 66)
            victim, hit_s = busiest(cluster, load, time.time()), time.time()
            cluster.workers[victim].send(signal.SIGSTOP)
            lost = await eventually(lambda: len(losses(cluster, victim, hit_s)) >= 30, 15.0)
            outcome.claim("it is noticed", lost)
            await asyncio.sleep(2.0)
            back_s = time.time()
            cluster.workers[victim].send(signal.SIGCONT)
            outcome.claim("it serves again", await eventually(lambda: _serves(load, victim, back_s), 20.0))
        _count_streaming(cluster, load, outcome, victim, hit_s)
        await cluster.until_idle()
        outcome.claim("it has let go of what it was doing", True)
    return outcome


async def zombie(folder: Path, extent: Extent) -> Outcome:
    """The busiest worker is stopped, another process takes its place under the same name, then it goes on."""
    outcome = Outcome("zombie", "streaming from the worker")
    async with running_cluster(folder, PAIR) as cluster:
        load = cluster.load(DECODING)
        async with load.running():
            await until_flowing(load, 66)
            victim, hit_s = busiest(cluster, load, time.time()), time.time()
            old = cluster.workers[victim]
            old.send(signal.SIGSTOP)
            heir = cluster.worker_child(victim, f"{victim}-heir")
            cluster.extra.append(heir)
            await heir.start()
            incarnation = (await heir.event("chaos.incarnation"))["incarnation"]
            await cluster.until_seen(2)
            back_s = time.time()
            old.send(signal.SIGCONT)
            assert old.process is not None
            ended = await eventually(lambda: old.process is not None and old.process.returncode is not None, 15.0)
            outcome.claim("the one that came back ended by itself", ended and old.process.returncode == 0)
            outcome.claim("its heir serves", await eventually(lambda: _serves(load, victim, back_s), 20.0))
            for router in cluster.routers.values():
                seen = {worker.worker_id: worker.incarnation for worker in (await router.status()).workers}
                outcome.claim(f"{router.child.name} sees the heir only", seen.get(victim) == incarnation)
        _count_streaming(cluster, load, outcome, victim, hit_s)
    return outcome


async def _noticed(cluster: Cluster, outcome: Outcome, victim: str, hit_s: float) -> None:
    """Claims that routers noticed in time."""
    await eventually(lambda: len(losses(cluster, victim, hit_s)) >= 30, 10.0)
    await asyncio.sleep(0.5)
    lost = losses(cluster, victim, hit_s)
    latest_s = max((after_s for _, after_s, _ in lost), default=float("inf"))
    outcome.claim(f"noticed within {DETECT_S:g} s by every request ({latest_s:.2f} s)", latest_s <= DETECT_S)


def _count_streaming(cluster: Cluster, load: Load, outcome: Outcome, victim: str, hit_s: float) -> None:
    """The figures of a fault that hits streams."""
    begun = {name for name, _, sent in losses(cluster, victim, hit_s) if sent}
    resumed = [stream for stream in by_id(load, begun) if stream.is_streaming(hit_s)]
    outcome.in_phase = len(resumed)
    outcome.claim("each of them went on and ended well", resumed and not any(stream.error for stream in resumed))
    outcome.recovery_s = longest_silence_s(resumed, hit_s)
    outcome.recovered_when = "no stream from it had waited longer for a token"
    outcome.count(load)


def _serves(load: Load, worker: str, since_s: float) -> bool:
    """Whether a request that was sent since then was answered by the worker."""
    return any(each.first_worker == worker and each.sent_s > since_s for each in load.streams)
