"""Workers as Ray actors: placed, called, killed, restarted, stopped; and nothing is left running."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from google.protobuf import timestamp_pb2
from stemcache.worker.v1 import worker_pb2

from cache_store.drain_token import sign_drain
from cache_store.errors import PreconditionError
from cache_store.registry import PROTOCOL_VERSION, WorkerRecord
from services.cluster.ray_cluster import RayCluster, _Actor
from services.cluster.valkey import EmbeddedValkey
from services.cluster.worker_part import PlacedState, WorkerSpec
from tests.support.breakable_actor import BreakableActor
from tests.support.memory_stores import MemoryStores
from tests.support.worker_host import CLUSTER_KEY, WorkerClient, digest_config, digest_domain, running_workers
from worker.actor import Reach, actor_environment
from worker.config import KvBytes, WorkerConfig

pytestmark = pytest.mark.slow

PROMPT = list(range(1, 101))
ACME = digest_domain("acme")
TIMEOUT_S = 90.0


def spec(config: WorkerConfig) -> WorkerSpec:
    return WorkerSpec(config.worker_id, (config, Reach.CONFIGURED), actor_environment(config), num_cpus=1, num_gpus=0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with RayCluster.start_local(BreakableActor, num_cpus=2) as cluster:
        yield cluster


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def until_ready(cluster: RayCluster, worker_id: str, not_incarnation: str = "") -> WorkerRecord:
    """Waits for a worker, or for its next incarnation."""

    def is_ready() -> bool:
        placed = cluster.look(worker_id)
        assert placed.state is not PlacedState.DEAD, placed.reason
        return placed.record is not None and placed.record.incarnation != not_incarnation

    until(is_ready, f"{worker_id} is not ready")
    record = cluster.look(worker_id).record
    assert record is not None
    return record


def execute(record: WorkerRecord) -> tuple[int, list[int]]:
    """Cached tokens and output of a request straight to a worker."""

    async def run() -> tuple[int, list[int]]:
        async with WorkerClient(record.address, record.incarnation) as client:
            execution = await client.execute(ACME, PROMPT)
            return execution.cached_tokens, execution.tokens[0]

    return asyncio.run(run())


def test_a_killed_worker_answers_again_under_a_fresh_incarnation(cluster: RayCluster, valkey: EmbeddedValkey) -> None:
    config = digest_config("worker-kill", valkey.urls.worker)
    cluster.create(spec(config))
    first = until_ready(cluster, "worker-kill")
    cold, output = execute(first)
    warm, _ = execute(first)
    assert (cold, warm > 0) == (0, True)
    os.kill(cluster.pid("worker-kill", 10), signal.SIGKILL)
    second = until_ready(cluster, "worker-kill", first.incarnation)
    assert second.worker_id == first.worker_id
    assert execute(second) == (0, output), "a fresh incarnation has an empty cache and gives the same tokens"
    cluster.stop("worker-kill", 1.0)
    assert "worker-kill" not in cluster.worker_ids()


def test_a_worker_whose_engine_died_is_started_again(cluster: RayCluster, valkey: EmbeddedValkey) -> None:
    config = digest_config("worker-end", valkey.urls.worker)
    cluster.create(spec(config))
    first = until_ready(cluster, "worker-end")
    ray.get_actor("worker:worker-end").break_engine.remote()
    until_ready(cluster, "worker-end", first.incarnation)
    cluster.stop("worker-end", 1.0)


def test_a_worker_that_cannot_start_says_why(cluster: RayCluster, valkey: EmbeddedValkey) -> None:
    cluster.create(spec(digest_config("worker-bad", valkey.urls.worker, pool=KvBytes(1))))
    until(lambda: cluster.look("worker-bad").state is PlacedState.DEAD, "it is not dead")
    assert "1 bytes hold no block" in cluster.look("worker-bad").reason
    cluster.stop("worker-bad", 1.0)


def test_a_worker_of_the_same_id_is_replaced(cluster: RayCluster, valkey: EmbeddedValkey) -> None:
    config = digest_config("worker-twice", valkey.urls.worker)
    cluster.create(spec(config))
    first = until_ready(cluster, "worker-twice")
    cluster.create(spec(config))
    second = until_ready(cluster, "worker-twice", first.incarnation)
    assert second.incarnation != first.incarnation
    assert cluster.worker_ids().count("worker-twice") == 1
    cluster.stop("worker-twice", 1.0)


def test_a_worker_that_runs_already_as_it_would_be_started_is_taken_over(
    cluster: RayCluster, valkey: EmbeddedValkey
) -> None:
    """With all that it has cached; one that was told something else is not."""
    config = digest_config("worker-kept", valkey.urls.worker)
    marked = replace(spec(config), fingerprint=config.fingerprint())
    cluster.create(marked)
    first = until_ready(cluster, "worker-kept")
    cold, output = execute(first)
    cluster.create(marked)
    kept = until_ready(cluster, "worker-kept")
    assert kept.incarnation == first.incarnation
    assert (cold, execute(kept)) == (0, (96, output))
    other = replace(config, token_budget=256)
    cluster.create(replace(spec(other), fingerprint=other.fingerprint()))
    assert until_ready(cluster, "worker-kept", first.incarnation).incarnation != first.incarnation
    cluster.stop("worker-kept", 1.0)


@pytest.mark.parametrize("lifetime", ["local", "detached"])
def test_a_worker_that_was_drained_ends_its_process_and_stays_away(
    cluster: RayCluster, valkey: EmbeddedValkey, lifetime: str
) -> None:
    """Also a detached one, which nobody would stop."""
    config = digest_config("worker-drained", valkey.urls.worker)
    if lifetime == "local":
        cluster.create(spec(config))
    else:
        options = {"name": "worker:worker-drained", "lifetime": "detached", "max_restarts": -1}
        handle = ray.remote(BreakableActor).options(**options).remote(config, Reach.CONFIGURED)
        cluster._actors["worker-drained"] = _Actor(handle)
    record = until_ready(cluster, "worker-drained")
    pid = str(cluster.pid("worker-drained", 10))
    asyncio.run(drain(record))
    until(lambda: not runs(pid), "its process still runs")
    until(lambda: cluster.look("worker-drained").state is PlacedState.LEFT, "it is not known to have left")
    cluster.stop("worker-drained", 1.0)
    assert "worker-drained" not in cluster.worker_ids()


async def drain(record: WorkerRecord) -> None:
    """Tells a worker to leave, as a router does."""
    token = sign_drain(CLUSTER_KEY, record.incarnation, time.time() + 10.0)
    now = timestamp_pb2.Timestamp()
    now.FromNanoseconds(time.time_ns())
    async with (
        running_workers([digest_config("worker-that-stays")], MemoryStores().connect) as (other,),
        WorkerClient(record.address, record.incarnation) as client,
    ):
        taker = worker_pb2.DrainPeer(address=other.address, incarnation=other.incarnation, clock_time=now)
        request = worker_pb2.DrainRequest(protocol_version=PROTOCOL_VERSION, drain_token=token, peers=[taker])
        await client.stub.Drain(request, timeout=30)


REMOTE = """
import sys, time
from services.cluster.ray_cluster import RayCluster
from services.cluster.worker_part import PlacedState, WorkerSpec
from tests.support.worker_host import digest_config
from worker.actor import Reach, WorkerActor, actor_environment

config = digest_config("worker-far", sys.argv[2])
with RayCluster.connect(WorkerActor, sys.argv[1]) as cluster:
    cluster.create(WorkerSpec("worker-far", (config, Reach.NODE), actor_environment(config), 1, 0))
    while cluster.look("worker-far").state is not PlacedState.READY:
        time.sleep(0.05)
    print(cluster.look("worker-far").record.address, flush=True)
"""


def test_workers_of_a_remote_cluster_outlive_their_launcher_and_are_stopped_by_name(
    cluster: RayCluster, valkey: EmbeddedValkey
) -> None:
    arguments = [sys.executable, "-c", REMOTE, cluster.address, valkey.urls.worker]
    launcher = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=True)
    assert not launcher.stdout.startswith("127."), "reached by the address of its node"
    assert "worker-far" in cluster.worker_ids()
    host, _, port = launcher.stdout.strip().rpartition(":")
    socket.create_connection((host, int(port)), timeout=5).close()
    cluster.stop("worker-far", 1.0)
    assert "worker-far" not in cluster.worker_ids()


def test_what_a_local_ray_does_not_have_is_refused_at_once(cluster: RayCluster) -> None:
    wanting = replace(spec(digest_config("worker-wants")), num_gpus=1_000)
    with pytest.raises(PreconditionError, match="worker-wants needs 1000 GPU, the local Ray has"):
        cluster.create(wanting)


def test_a_worker_that_still_starts_is_stopped_at_once(cluster: RayCluster, valkey: EmbeddedValkey) -> None:
    cluster.create(spec(digest_config("worker-soon", valkey.urls.worker)))
    cluster.stop("worker-soon", 60.0)
    assert "worker-soon" not in cluster.worker_ids()


LAUNCHER = """
import os, sys, time
from services.cluster.ray_cluster import RayCluster
from services.cluster.worker_part import PlacedState, WorkerSpec
from tests.support.worker_host import digest_config
from worker.actor import Reach, WorkerActor, actor_environment

config = digest_config("worker-0", sys.argv[1])
cluster = RayCluster.start_local(WorkerActor, num_cpus=1)
cluster.create(WorkerSpec("worker-0", (config, Reach.CONFIGURED), actor_environment(config), 1, 0))
while cluster.look("worker-0").state is not PlacedState.READY:
    time.sleep(0.05)
print(cluster.folder, cluster.pid("worker-0", 10), flush=True)
if sys.argv[2] == "close":
    cluster.close()
else:
    time.sleep(600)
"""


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_nothing_is_left_of_a_local_ray(ending: str, valkey: EmbeddedValkey) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, valkey.urls.worker, ending], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    folder, pid = launcher.stdout.readline().split()
    if ending == "kill":
        launcher.kill()
    launcher.wait(TIMEOUT_S)
    launcher.stdout.close()
    until(lambda: not Path(folder).exists(), f"{folder} is still there")
    until(lambda: not runs(pid), f"process {pid} of the worker still runs")
    assert processes_with(folder) == []


def runs(pid: str) -> bool:
    """Whether a process is there and is more than a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes_with(folder: str) -> list[str]:
    """Processes that name the folder, and Ray's, whose titles are their own, that hold files in it."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            files = [str(link.readlink()) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        if folder in command or any(name.startswith(folder) for name in files):
            found.append(f"{process.name} {command}")
    return found
