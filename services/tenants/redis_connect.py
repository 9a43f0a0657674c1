"""Opens the control store at a URL. Knows no tenants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from cache_store.clock import Clock
from services.tenants.master_key import MasterKey
from services.tenants.redis_store import ControlStore

CONNECT_DEADLINE_S = 2.0


@asynccontextmanager
async def control_store(url: str, master: MasterKey, clock: Clock) -> AsyncIterator[ControlStore]:
    """The store, whose connections are closed at the end. Nothing is connected before the first call."""
    redis = Redis.from_url(
        url,
        socket_timeout=None,  # each call has a deadline; redis-py's own swallows cancellations (asyncio.wait_for does)
        socket_connect_timeout=CONNECT_DEADLINE_S,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        yield ControlStore(redis, master, clock)
    finally:
        await redis.aclose()
