"""Which hits are going to be audited: a share of each tenant's, bounded for each and for all together.

A sample holds no blocks: what of it is still cached when its turn comes is what is checked. Owned by the engine.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from cache_store.domain import AdapterDigest, Domain, TenantId
from cache_store.tokens import PackedTokens

MAX_PER_TENANT = 4
MAX_SAMPLES = 64
"""Of all tenants; a prompt of 128k tokens takes 512 KiB."""


Chance = Callable[[], float]
"""A random number in [0, 1)."""


def never() -> float:
    """Chooses nothing."""
    return 1.0


@dataclass(slots=True)
class Sample:
    """The reused prefix of one request."""

    domain: Domain
    adapter: AdapterDigest
    tokens: PackedTokens
    """Of full blocks."""
    num_checked: int = 0
    """Leading tokens whose blocks were compared, and equal."""


class Samples:
    """Those that wait, first come, first served."""

    def __init__(self, share: Callable[[TenantId], float], draw: Chance) -> None:
        """`share`: part of a tenant's hits."""
        self._share = share
        self._draw = draw
        self._queue: deque[Sample] = deque()
        self._num_queued: Counter[TenantId] = Counter()
        self.num_skipped = 0
        """That were chosen and not kept, because too many waited."""

    def __len__(self) -> int:
        return len(self._queue)

    def is_chosen(self, tenant: TenantId) -> bool:
        """Whether a hit of the tenant that just happened is to be audited."""
        return self._draw() < self._share(tenant)

    def add(self, sample: Sample) -> None:
        """Lets a sample wait, unless its tenant, or all together, have too many that do."""
        tenant = sample.domain.tenant
        if len(self._queue) >= MAX_SAMPLES or self._num_queued[tenant] >= MAX_PER_TENANT:
            self.num_skipped += 1
            return
        self._queue.append(sample)
        self._num_queued[tenant] += 1

    @property
    def first(self) -> Sample | None:
        """Whose turn it is."""
        return self._queue[0] if self._queue else None

    def end_first(self) -> None:
        """It is done."""
        tenant = self._queue.popleft().domain.tenant
        self._num_queued[tenant] -= 1
        if not self._num_queued[tenant]:
            del self._num_queued[tenant]
