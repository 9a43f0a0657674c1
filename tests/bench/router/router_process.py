"""The product's router in a process of its own. What it is told comes as JSON on standard input; it prints its address.

Run as a module. It logs as always, to a file in its folder.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TextIO

import uvloop

from cache_store.clock import SystemClock
from cache_store.log_setup import log_as_json
from services.cluster.redis_roles import RoleUrls
from services.router.app import running_router
from services.router.collection import collect_seldom
from tests.bench.router.sight import Sight, sight_of
from tests.support.router_host import router_settings


async def serve(urls: RoleUrls, folder: Path, out: TextIO, sight: Sight) -> None:
    """Until SIGTERM."""
    settings = router_settings(urls, folder, metrics=sight.metrics, tracing=sight.tracing)
    async with running_router(settings, SystemClock()) as router:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, router.stop)
        collect_seldom()
        print(router.address, router.metrics_address, file=out, flush=True)
        await router.run()


def main() -> None:
    told = json.load(sys.stdin)
    folder, out = Path(told["folder"]), sys.stdout
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "router.log").open("w") as log, redirect_stdout(log):
        log_as_json()
        uvloop.run(serve(RoleUrls(**told["urls"]), folder, out, sight_of(told)))


if __name__ == "__main__":
    main()
