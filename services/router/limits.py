"""How much runs at once: of one tenant, and of all. Owned by one event loop; holds a count per tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from cache_store.domain import TenantId
from cache_store.errors import LimitExceededError, UnavailableError

RETRY_AFTER_S = 1.0


class Concurrency:
    """Places for one kind of thing that runs. `acquire` and `release` come in pairs."""

    def __init__(self, subject: str, max_total: int, max_per_tenant: int) -> None:
        """`subject` names the limit to those who reach it."""
        self._subject = subject
        self._max_total = max_total
        self._max_per_tenant = max_per_tenant
        self._running: Counter[TenantId] = Counter()
        self._total = 0

    @property
    def total(self) -> int:
        """Places taken."""
        return self._total

    def acquire(self, tenant: TenantId) -> None:
        """Takes a place. Raises LimitExceededError or UnavailableError; the tenant's own limit is told first."""
        if self._running[tenant] >= self._max_per_tenant:
            raise LimitExceededError(
                self._subject,
                f"your tenant has {self._running[tenant]} {self._subject}, which is its limit; wait for one to end",
                RETRY_AFTER_S,
            )
        if self._total >= self._max_total:
            raise UnavailableError("the cluster is full; try again", RETRY_AFTER_S)
        self._running[tenant] += 1
        self._total += 1

    @contextmanager
    def held(self, tenant: TenantId) -> Iterator[None]:
        """A place for as long as the block runs."""
        self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    def release(self, tenant: TenantId) -> None:
        """Gives a place back."""
        assert self._running[tenant] > 0, "a place was given back twice"
        self._running[tenant] -= 1
        self._total -= 1
        if not self._running[tenant]:
            del self._running[tenant]
