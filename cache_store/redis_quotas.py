"""The published quotas in Redis: one hash, written by routers in the role of the operator, read by workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cache_store.errors import UnavailableError
from cache_store.quota_document import QuotaDocument
from cache_store.redis_keys import QUOTAS_KEY
from cache_store.redis_scripts import ScriptKind, load_script
from cache_store.redis_session import REDIS_ERRORS, RedisSession

CALL_DEADLINE_S = 0.5
RETRY_AFTER_S = 0.5


class RedisQuotas:
    """Reads and writes what was published. Every method raises UnavailableError where Redis is away or refuses."""

    def __init__(self, session: RedisSession, deadline_s: float = CALL_DEADLINE_S) -> None:
        self._session = session
        self._deadline_s = deadline_s
        self._script = load_script("publish_quotas", ScriptKind.WRITES)

    async def read_head(self) -> bytes:
        """The head as it was written; empty where nothing was published."""
        with _as_unavailable():
            head = await self._session.call(("HGET", QUOTAS_KEY, "head"), self._deadline_s)
        return head if isinstance(head, bytes) else b""

    async def read(self) -> QuotaDocument | None:
        """Head and body of one moment; None where nothing was published."""
        with _as_unavailable():
            fields = await self._session.call(("HMGET", QUOTAS_KEY, "head", "body"), self._deadline_s)
        match fields:
            case [bytes(head), bytes(body)]:
                return QuotaDocument(head, body)
        return None

    async def write(self, expected_head: bytes, document: QuotaDocument) -> None:
        """Publishes, unless the head is another than `expected_head` by now: then another router was first."""
        arguments = (expected_head, document.head, document.body)
        with _as_unavailable():
            await self._session.run_script(self._script, [QUOTAS_KEY], arguments, self._deadline_s)


@contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except REDIS_ERRORS as error:
        raise UnavailableError(f"the quotas in Redis: {error}", RETRY_AFTER_S) from error
