"""What the server says of itself."""

from __future__ import annotations

import asyncio

from cache_store.redis_session import RedisSession

_DEADLINE_S = 10.0


async def server_us(session: RedisSession, *commands: str) -> int:
    """Time that the server has spent in the commands so far; all where none is named."""
    found = 0
    for line in await _info(session, "commandstats"):
        name, _, values = line.partition(":")
        if values and (not commands or name.removeprefix("cmdstat_") in commands):
            found += int(values.split("usec=")[1].split(",")[0])
    return found


async def used_memory(session: RedisSession) -> int:
    """Bytes that the server has allocated, when nothing waits to be freed any more."""
    while True:
        values = dict(line.split(":", 1) for line in await _info(session, "memory") if ":" in line)
        if values.get("lazyfree_pending_objects", "0") == "0":
            return int(values["used_memory"])
        await asyncio.sleep(0.01)


async def _info(session: RedisSession, section: str) -> list[str]:
    text = await session.call(("INFO", section), _DEADLINE_S)
    assert isinstance(text, bytes)
    return text.decode().splitlines()
