"""Faults of the machine: a disk that is full, a clock that jumps."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.cluster import Cluster, Layout, running_cluster
from tests.chaos.faults.course import Extent, longest_silence_s, until_flowing
from tests.chaos.load import Shape
from tests.chaos.outcome import Outcome

DISK_MIB = 24
HOUR_S = 3_600.0
TIERED = Shape(num_streams=20, num_prefixes=60, max_tokens=12)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system in memory of its own; needs root."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def full_disk(folder: Path, extent: Extent) -> Outcome:
    """The disk below two workers' caches fills up, and has room again later."""
    outcome = Outcome("full disk", "in flight when it was full")
    with small_disk(folder.parent / "disk") as disk:
        told = {
            "pool": 900, "host_pool": 200, "disk_pool": 2_000, "disk_folder": str(disk), "digest_step_s": 0.03,
        }  # fmt: skip
        async with running_cluster(folder, Layout(workers=("w0", "w1"), worker_told=told)) as cluster:
            load = cluster.load(TIERED)
            async with load.running():
                await until_flowing(load, 30)
                stored = await _until_more(cluster, "stored_blocks", 0)
                outcome.claim(f"blocks go down to the disk ({stored})", stored)
                failed = await _count(cluster, "failed_blocks")
                filler = disk / "filler"
                hit_s = time.time()
                _fill(filler)
                outcome.in_phase = sum(each.is_waiting(hit_s) or each.is_streaming(hit_s) for each in load.streams)
                more = await _until_more(cluster, "failed_blocks", failed)
                outcome.claim(f"writes fail ({more - failed})", more > failed)
                await asyncio.sleep(5.0)
                stored, mended_s = await _count(cluster, "stored_blocks"), time.time()
                filler.unlink()
                again = await _until_more(cluster, "stored_blocks", stored)
                outcome.recovery_s, outcome.recovered_when = time.time() - mended_s, "blocks went to the disk again"
                outcome.claim(f"with room again, blocks go there again ({again - stored})", again > stored)
            outcome.count(load)
            outcome.claim("no request failed, early or late", not outcome.errors)
            await cluster.until_idle()
    return outcome


def _fill(file: Path) -> None:
    """Takes all room that there is."""
    with file.open("wb", buffering=0) as filler:
        for size_bytes in (1 << 16, 1 << 10, 1):
            try:
                while filler.write(bytes(size_bytes)):
                    pass
            except OSError:  # no room for so much
                continue


async def _count(cluster: Cluster, name: str) -> int:
    """A counter of the disk tier, over all workers."""
    status = await cluster.routers["r0"].status()
    tiers = [tier for worker in status.workers for tier in worker.tiers if tier.tier == "disk"]
    return sum(getattr(tier, name) for tier in tiers)


async def _until_more(cluster: Cluster, name: str, than: int, timeout_s: float = 45.0) -> int:
    """Waits until the counter is higher than that; its last value, whatever it is."""
    deadline_s = time.monotonic() + timeout_s
    while (found := await _count(cluster, name)) <= than and time.monotonic() < deadline_s:
        await asyncio.sleep(0.2)
    return found


async def clock_jump(folder: Path, extent: Extent) -> Outcome:
    """The clocks of a router and of a worker are set an hour ahead, and an hour back."""
    outcome = Outcome("clock jump", "in flight at one of the jumps")
    layout = Layout(worker_told={"digest_step_s": 0.08}, has_clocks=True)
    async with running_cluster(folder, layout) as cluster:
        load = cluster.load(Shape(num_streams=24, max_tokens=20))
        async with load.running():
            await until_flowing(load, 35)
            for name, jump_s in (("r0", HOUR_S), ("r0", -HOUR_S), ("r0", 0.0), ("w0", HOUR_S), ("w0", -HOUR_S)):
                hit_s = time.time()
                flowing = [each for each in load.streams if each.is_waiting(hit_s) or each.is_streaming(hit_s)]
                outcome.in_phase += len(flowing)
                (cluster.clock_file(name)).write_text(str(jump_s))
                await asyncio.sleep(4.0)
                outcome.recovery_s = max(outcome.recovery_s, longest_silence_s(flowing, hit_s))
                since = [each for each in load.streams if each.sent_s > hit_s and each.begun_s]
                outcome.claim(f"{name} {jump_s:+.0f} s: {len(since)} requests were sent and answered", since)
                if name.startswith("w"):
                    outcome.claim(f"{name} is still sent requests", any(each.first_worker == name for each in since))
        outcome.recovered_when = "no stream had waited longer for a token"
        outcome.count(load)
        outcome.claim("no request failed, early or late", not outcome.errors)
        await cluster.until_idle()
    return outcome
