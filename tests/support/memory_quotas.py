"""Published quotas in this process: for tests of routers' publishers and workers' watchers that need no server."""

from __future__ import annotations

from cache_store.errors import UnavailableError
from cache_store.quota_document import QuotaDocument


class MemoryQuotas:
    """Both sides. `document` is what was published; `reachable` turned off makes every call fail."""

    def __init__(self) -> None:
        self.document: QuotaDocument | None = None
        self.reachable = True
        self.num_bodies_read = 0
        self.num_written = 0

    async def read_head(self) -> bytes:
        self._check()
        return self.document.head if self.document else b""

    async def read(self) -> QuotaDocument | None:
        self._check()
        self.num_bodies_read += 1
        return self.document

    async def write(self, expected_head: bytes, document: QuotaDocument) -> None:
        if await self.read_head() == expected_head:
            self.document = document
            self.num_written += 1

    def _check(self) -> None:
        if not self.reachable:
            raise UnavailableError("switched off by the test", 1.0)
