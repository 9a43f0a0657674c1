"""A worker as a process of its own: `python -m tests.chaos.worker_main`, its configuration as JSON on standard input.

On SIGUSR1 it says in its log what it holds; on SIGTERM it drains and leaves. A host that failed ends the process with
status 70, as the worker's actor does; one that was superseded ends too, with status 0.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import structlog
import uvloop

from cache_store.clock import SystemClock
from cache_store.log_setup import log_as_json
from cache_store.registry import SupersededError
from tests.chaos.jumping_clock import JumpingClock
from tests.support.worker_host import digest_config
from worker.build import build_runner, connect_stores
from worker.config import KvBytes, NumBlocks, Numerics, RunnerKind, WorkerConfig
from worker.engine import Engine
from worker.host import WorkerHost, WorkerParts

FAILED = 70
DRAIN_S = 5.0

_log = structlog.get_logger()


def config_of(told: dict[str, Any]) -> WorkerConfig:
    """JSON has neither bytes nor paths nor choices."""
    values = dict(told)
    values["cluster_key"] = bytes.fromhex(values["cluster_key"])
    for name in ("pool", "host_pool", "disk_pool"):
        if name in values:
            values[name] = NumBlocks(values[name])
    if "pool_bytes" in values:
        values["pool"] = KvBytes(values.pop("pool_bytes"))
    for name in ("disk_folder", "model_folder", "cache_dir"):
        if name in values:
            values[name] = Path(values[name])
    if "runner" in values:
        values["runner"] = RunnerKind(values["runner"])
    if "numerics" in values:
        values["numerics"] = Numerics(values["numerics"])
    return digest_config(**values)


async def serve(told: dict[str, Any]) -> int:
    """Runs until it is told to end, or fails. The exit status."""
    clock_file = told.pop("clock_file", "")
    clock = JumpingClock(Path(clock_file)) if clock_file else SystemClock()
    host = await WorkerHost.start(config_of(told), WorkerParts(build_runner, connect_stores, clock))
    _log.info("chaos.incarnation", incarnation=host.incarnation)
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    def begin(work: Any) -> None:
        running.add(task := asyncio.ensure_future(work))
        task.add_done_callback(running.discard)

    loop.add_signal_handler(signal.SIGUSR1, lambda: begin(_tell(host)))
    loop.add_signal_handler(signal.SIGTERM, lambda: begin(_leave(host)))
    await host.wait_ended()
    if host.failure is None or isinstance(host.failure, SupersededError):
        return 0
    return FAILED


async def _tell(host: WorkerHost) -> None:
    num_held, num_waiting = await host.thread.call(_look, 30.0)
    _log.info("chaos.state", num_open=host.thread.num_open, num_held_blocks=num_held, num_requests=num_waiting)


def _look(engine: Engine) -> tuple[int, int]:
    """Between two steps. Raises AssertionError where the engine contradicts itself."""
    engine.check_invariants()
    load = engine.load()
    return engine.num_held_blocks, load.running_requests + load.waiting_requests


async def _leave(host: WorkerHost) -> None:
    await host.drain(DRAIN_S)
    await host.stop()


if __name__ == "__main__":
    log_as_json()
    sys.exit(uvloop.run(serve(json.load(sys.stdin))))
