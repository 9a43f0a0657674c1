"""A worker of the benchmark in a process of its own. What it is told comes as JSON on standard input.

It prints its address and where its metrics are.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import redirect_stdout
from typing import Any, TextIO

import uvloop

from cache_store.clock import SystemClock
from cache_store.log_setup import log_as_json
from tests.bench.router.sight import sight_of
from tests.support.worker_host import digest_config
from worker.build import build_runner, connect_stores
from worker.host import WorkerHost, WorkerParts


async def serve(told: dict[str, Any], out: TextIO) -> None:
    """Until SIGTERM."""
    sight = sight_of(told)
    config = digest_config(
        told["worker_id"],
        told["redis_url"],
        cluster_key=bytes.fromhex(told["cluster_key"]),
        metrics=sight.metrics,
        tracing=sight.tracing,
    )
    host = await WorkerHost.start(config, WorkerParts(build_runner, connect_stores, SystemClock()))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(host.address, host.metrics_address, file=out, flush=True)
    await stop.wait()
    await host.stop()


def main() -> None:
    told, out = json.load(sys.stdin), sys.stdout
    with redirect_stdout(sys.stderr):
        log_as_json()
        uvloop.run(serve(told, out))


if __name__ == "__main__":
    main()
