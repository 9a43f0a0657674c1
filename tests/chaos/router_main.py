"""A router whose clock can be set: `python -m tests.chaos.router_main`, else as `python -m services.router`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import uvloop

from cache_store.log_setup import log_as_json
from services.router.app import running_router
from services.settings import RouterSettings
from tests.chaos.jumping_clock import JumpingClock


async def serve(settings: RouterSettings, clock_file: Path) -> None:
    """Runs until SIGTERM."""
    import asyncio

    async with running_router(settings, JumpingClock(clock_file)) as router:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, router.stop)
        await router.run()


if __name__ == "__main__":
    log_as_json()
    sys.exit(uvloop.run(serve(RouterSettings.from_environ(), Path(os.environ["CHAOS_CLOCK_FILE"]))))
