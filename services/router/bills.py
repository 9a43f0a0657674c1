"""What tenants' requests used, as this router saw it: a generation is counted once, whoever reads its answer.

What a generation costs its tenant is what the first worker that answered said of the prompt, and the tokens of the
answer. A worker that was lost before the first token costs nothing; one that was lost after it is paid once, and what
another one computes again to go on is not paid. A request that ends before its first token is counted by its outcome
only. Attaching to a generation is no request. Owned by one event loop.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from cache_store.domain import TenantId
from cache_store.metered import Counts, Metered
from services.router.generation import Started, Timings

MAX_TENANTS = 4_096
"""Of which is remembered what they used since the router's start."""

_OUTCOMES = {
    "OK": Metered.COMPLETED,
    "CANCELLED": Metered.CANCELLED,
    "DEADLINE_EXCEEDED": Metered.EXPIRED,
    "RESOURCE_EXHAUSTED": Metered.REFUSED,
    "UNAVAILABLE": Metered.REFUSED,
    "INVALID_ARGUMENT": Metered.REFUSED,
    "FAILED_PRECONDITION": Metered.REFUSED,
    "NOT_FOUND": Metered.REFUSED,
    "ALREADY_EXISTS": Metered.REFUSED,
    "PERMISSION_DENIED": Metered.REFUSED,
    "UNAUTHENTICATED": Metered.REFUSED,
}
"""By the name of the status; all others are failures."""


class TenantBill:
    """What one tenant used since it was last asked for."""

    __slots__ = ("counts", "generated_tokens")

    def __init__(self) -> None:
        self.counts: Counter[Metered] = Counter()
        self.generated_tokens = 0
        """Tokens of answers; counted apart, since each piece of an answer does."""

    def begin(self, started: Started) -> None:
        """An answer has begun."""
        counts, cached = self.counts, started.cached
        counts[Metered.PROMPT] += started.prompt_tokens
        counts[Metered.CACHED_DEVICE] += cached.device
        counts[Metered.CACHED_HOST] += cached.host
        counts[Metered.CACHED_DISK] += cached.disk
        counts[Metered.CACHED_PEER] += cached.peer
        counts[Metered.COMPUTED] += started.prompt_tokens - cached.total
        if started.prefill_tokens_per_s > 0:
            counts[Metered.SAVED_US] += round(cached.total / started.prefill_tokens_per_s * 1e6)

    def end(self, status: str, timings: Timings | None) -> None:
        """A request is over, with a status of that name."""
        self.counts[_OUTCOMES.get(status, Metered.FAILED)] += 1
        if timings is not None:
            self.counts[Metered.RECOMPUTED] += timings.recomputed_tokens

    def take(self) -> Counter[Metered]:
        """What has come together; nothing is left."""
        counts, self.counts = self.counts, Counter()
        if self.generated_tokens:
            counts[Metered.GENERATED] += self.generated_tokens
            self.generated_tokens = 0
        return counts


class Bills:
    """Of all tenants."""

    def __init__(self) -> None:
        self._open: dict[TenantId, TenantBill] = {}
        self._totals: OrderedDict[TenantId, Counter[Metered]] = OrderedDict()
        self._forgotten: Counter[Metered] = Counter()

    def of(self, tenant: TenantId) -> TenantBill:
        """To be counted on; valid until the next `take`, so it is to be asked for each time."""
        bill = self._open.get(tenant)
        if bill is None:
            bill = self._open[tenant] = TenantBill()
        return bill

    def take(self) -> list[tuple[TenantId, Counts]]:
        """What came together since the last call."""
        taken: list[tuple[TenantId, Counts]] = []
        for tenant, bill in self._open.items():
            counts = bill.take()
            if counts:
                taken.append((tenant, counts))
                self._remember(tenant, counts)
        self._open = {}
        return taken

    def totals(self) -> dict[TenantId, Counter[Metered]]:
        """What tenants used since the router's start, as of the last `take`; at most MAX_TENANTS, those of late."""
        return {tenant: Counter(counts) for tenant, counts in self._totals.items()}

    @property
    def forgotten(self) -> Counter[Metered]:
        """What those used that are not in `totals` any more."""
        return Counter(self._forgotten)

    def _remember(self, tenant: TenantId, counts: Counter[Metered]) -> None:
        self._totals.setdefault(tenant, Counter()).update(counts)
        self._totals.move_to_end(tenant)
        if len(self._totals) > MAX_TENANTS:
            _, old = self._totals.popitem(last=False)
            self._forgotten.update(old)
