"""A worker in a process of its own, over the token-digest runner: to be killed or stopped as machines do it.

Run as a module with a JSON object on standard input: `redis_url`, `cluster_key` (hex) and changes of the configuration.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def worker_process(worker_id: str, redis_url: str, cluster_key: bytes, **changes: Any) -> AsyncIterator[Process]:
    """A started worker; it is killed at the end. Returns before it has joined the registry."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.worker_process", cwd=ROOT, stdin=PIPE, stdout=DEVNULL,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
    )  # fmt: skip
    assert process.stdin is not None
    told = {"worker_id": worker_id, "redis_url": redis_url, "cluster_key": cluster_key.hex()} | changes
    process.stdin.write(json.dumps(told).encode())
    process.stdin.close()
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()


async def _serve(told: dict[str, Any]) -> None:
    from cache_store.clock import SystemClock
    from tests.support.worker_host import digest_config
    from worker.build import build_runner, connect_stores
    from worker.host import WorkerHost, WorkerParts

    told["cluster_key"] = bytes.fromhex(told["cluster_key"])
    host = await WorkerHost.start(digest_config(**told), WorkerParts(build_runner, connect_stores, SystemClock()))
    await host.wait_ended()


if __name__ == "__main__":
    asyncio.run(_serve(json.load(sys.stdin)))
