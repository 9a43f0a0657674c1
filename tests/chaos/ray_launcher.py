"""Places workers in a Ray cluster and leaves: `python -m tests.chaos.ray_launcher`, told as JSON on standard input.

With `ask` instead of `workers` it only looks. Prints, as JSON, the incarnation and process id of each worker.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import ray

from services.cluster.ray_cluster import RayCluster
from services.cluster.worker_part import PlacedState, WorkerSpec
from tests.chaos.worker_main import config_of
from worker.actor import Reach, WorkerActor, actor_environment

READY_S = 120.0


def main() -> None:
    """Joins, places or looks, tells, leaves."""
    told = json.load(sys.stdin)
    with RayCluster.connect(WorkerActor, told["address"]) as cluster:
        if "workers" in told:
            print(json.dumps(_place(cluster, told["workers"])), flush=True)
        else:
            print(json.dumps(_look(cluster)), flush=True)


def _place(cluster: RayCluster, workers: list[dict[str, Any]]) -> dict[str, Any]:
    configs = [config_of(each) for each in workers]
    for config in configs:
        cluster.create(WorkerSpec(config.worker_id, (config, Reach.CONFIGURED), actor_environment(config), 1.0, 0.0))
    deadline_s = time.monotonic() + READY_S
    placed: dict[str, Any] = {}
    while len(placed) < len(configs):
        assert time.monotonic() < deadline_s, "workers are not ready"
        for config in configs:
            found = cluster.look(config.worker_id)
            assert found.state is not PlacedState.DEAD, found.reason
            if found.record is not None:
                placed[config.worker_id] = [found.record.incarnation, cluster.pid(config.worker_id, 10.0)]
        time.sleep(0.1)
    return placed


def _look(cluster: RayCluster) -> dict[str, Any]:
    """All workers that Ray knows, whoever placed them."""
    found = {}
    for worker_id in cluster.worker_ids():
        actor = ray.get_actor(f"worker:{worker_id}")
        record = ray.get(actor.describe.remote(), timeout=60.0)
        found[worker_id] = [record.incarnation, ray.get(actor.pid.remote(), timeout=60.0)]
    return found


if __name__ == "__main__":
    main()
