"""Finished generations kept for clients that retry: bounded in age, number and bytes, per tenant and over all.

Where all tenants together keep too much, the one that keeps the most loses its oldest. Owned by one event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from cache_store.clock import Clock
from cache_store.domain import TenantId
from services.router.progress import Progress


@dataclass(frozen=True, slots=True)
class ResultKey:
    """The tenant first: an id names nothing without it."""

    tenant: TenantId
    request_id: str


@dataclass(frozen=True, slots=True)
class KeptResult:
    """A result and the body that it is the result of."""

    fingerprint: bytes
    progress: Progress
    expires_s: float


@dataclass(frozen=True, slots=True)
class ResultBounds:
    """How much is kept."""

    keep_s: float = 60.0
    max_per_tenant: int = 1024
    max_bytes_per_tenant: int = 16 << 20
    max_bytes: int = 128 << 20


class _Shelf:
    """One tenant's results, oldest first."""

    def __init__(self) -> None:
        self.results: OrderedDict[str, KeptResult] = OrderedDict()
        self.size_bytes = 0

    def put(self, request_id: str, result: KeptResult) -> None:
        self.take(request_id)
        self.results[request_id] = result
        self.size_bytes += result.progress.size_bytes

    def take(self, request_id: str) -> None:
        result = self.results.pop(request_id, None)
        if result is not None:
            self.size_bytes -= result.progress.size_bytes

    def take_oldest(self) -> None:
        self.take(next(iter(self.results)))


class KeptResults:
    """The results of one router."""

    def __init__(self, clock: Clock, bounds: ResultBounds) -> None:
        self._clock = clock
        self._bounds = bounds
        self._shelves: dict[TenantId, _Shelf] = {}

    @property
    def size_bytes(self) -> int:
        """Of all results."""
        return sum(shelf.size_bytes for shelf in self._shelves.values())

    def get(self, key: ResultKey) -> KeptResult | None:
        """The result, where it is kept and not too old."""
        shelf = self._shelves.get(key.tenant)
        result = shelf.results.get(key.request_id) if shelf else None
        return result if result is not None and result.expires_s > self._clock.monotonic_s() else None

    def keep(self, key: ResultKey, fingerprint: bytes, progress: Progress) -> None:
        """Keeps a result that has ended, at the price of older ones; one that alone is too large is not kept."""
        assert progress.has_ended, "only a finished generation is kept"
        self.expire()
        result = KeptResult(fingerprint, progress, self._clock.monotonic_s() + self._bounds.keep_s)
        shelf = self._shelves.setdefault(key.tenant, _Shelf())
        shelf.put(key.request_id, result)
        bounds = self._bounds
        while shelf.size_bytes > bounds.max_bytes_per_tenant or len(shelf.results) > bounds.max_per_tenant:
            shelf.take_oldest()
        while self.size_bytes > bounds.max_bytes:
            max(self._shelves.values(), key=lambda each: each.size_bytes).take_oldest()
        self._drop_empty()

    def expire(self) -> None:
        """Forgets what is too old. Called now and then, so that memory is given back without traffic too."""
        now_s = self._clock.monotonic_s()
        for shelf in self._shelves.values():
            while shelf.results and next(iter(shelf.results.values())).expires_s <= now_s:
                shelf.take_oldest()
        self._drop_empty()

    def check_invariants(self) -> None:
        """Raises AssertionError where the counts are wrong or the bounds are passed."""
        for shelf in self._shelves.values():
            assert shelf.results, "an empty shelf was left"
            assert shelf.size_bytes == sum(each.progress.size_bytes for each in shelf.results.values())
            assert shelf.size_bytes <= self._bounds.max_bytes_per_tenant
            assert len(shelf.results) <= self._bounds.max_per_tenant
        assert self.size_bytes <= self._bounds.max_bytes

    def _drop_empty(self) -> None:
        for tenant in [tenant for tenant, shelf in self._shelves.items() if not shelf.results]:
            del self._shelves[tenant]
