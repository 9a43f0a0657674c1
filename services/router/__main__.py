"""`python -m services.router`: a router process, told everything by its environment (see services/settings.py)."""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from cache_store.clock import SystemClock
from cache_store.errors import StemcacheError
from cache_store.log_setup import log_as_json
from services.router.app import running_router
from services.router.collection import collect_seldom
from services.settings import RouterSettings

BAD_SETTINGS = 2


async def serve(settings: RouterSettings) -> None:
    """Runs until SIGTERM or SIGINT, then ends in order."""
    async with running_router(settings, SystemClock()) as router:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, router.stop)
        collect_seldom()
        await router.run()


def main() -> int:
    """Exit code 2, with a sentence on standard error, for settings that cannot work."""
    log_as_json()
    try:
        uvloop.run(serve(RouterSettings.from_environ()))
    except StemcacheError as error:
        sys.stderr.write(f"stemcache router: {error}\n")
        return BAD_SETTINGS
    return 0


if __name__ == "__main__":
    sys.exit(main())
