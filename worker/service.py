"""Service of the tenants: what each row is charged at its prices, and what steps really took.

Joins counters (`worker/fairness.py`), prices (`worker/step_cost.py`) and weights. Rows are charged when they are
chosen, so that the next choice in the same step knows. A step lasts as long for everybody in it: who has had more than
another one may make it no longer than it would be for that one on a worker of its part of the speed. Owned by the
scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

from cache_store.domain import TenantId
from worker.fairness import ServiceCounters
from worker.sequence import Sequence
from worker.step_cost import StepCost
from worker.step_plan import Row

MIN_CHUNK_TOKENS = 32
"""A turn is at least that many prompt tokens long: shorter rows cost more than they are fair."""


UNLIMITED = 1 << 30
"""More tokens than any step has."""


class Service:
    """Counters and prices of one engine."""

    def __init__(self, weight: Callable[[TenantId], float]) -> None:
        self._weight = weight
        self._counters = ServiceCounters()
        self._cost = StepCost()
        self._charges: dict[Sequence, float] = {}
        """Of the step that is being made."""
        self._works: dict[TenantId, float] = {}
        """Seconds that the step lasts because of each tenant, beside what any step takes."""
        self._weights: dict[TenantId, float] = {}
        """As of this step."""
        self._num_limited = 0
        """Prompt tokens in it of tenants that were kept from making it longer."""

    def weight(self, tenant: TenantId) -> float:
        """Its part of service, in proportion to the others'."""
        weight = self._weights.get(tenant)
        if weight is None:
            weight = self._weights[tenant] = self._weight(tenant)
        return weight

    def of(self, tenant: TenantId) -> float:
        """What it has had, in seconds for its weight; comparable between tenants."""
        return self._counters.of(tenant)

    def enter(self, tenant: TenantId, backlogged: Collection[TenantId]) -> None:
        """A tenant has work again."""
        self._counters.enter(tenant, backlogged)

    def turn(self, tenant: TenantId, others: Iterable[TenantId]) -> int:
        """Prompt tokens that the tenant, who has had the least, may take until one of the `others` is due."""
        ahead_s = min((self.of(other) for other in others), default=math.inf) - self.of(tenant)
        price_s = self._cost.token_s / self.weight(tenant)
        if not math.isfinite(ahead_s) or price_s <= 0:
            return UNLIMITED
        return max(MIN_CHUNK_TOKENS, math.ceil(min(ahead_s / price_s, UNLIMITED)))

    def limit(self, tenant: TenantId, active: Collection[TenantId], num_least: int) -> int:
        """Prompt tokens that the tenant may add to the step without making it too long for those who have had less.

        `active` are all tenants with work. Those who are limited may always add `num_least` together, so that a step
        is worth its while.
        """
        total = sum(self.weight(each) for each in active)
        parts = {each: self.weight(each) / total for each in self._works if self.of(each) < self.of(tenant)}
        if tenant in parts or not parts:
            return UNLIMITED
        base_s = self._cost.expected_s(0, 0)
        longest_s = min((base_s + self._works[each]) / part for each, part in parts.items())
        left_s = longest_s - base_s - sum(self._works.values())
        by_time = left_s / self._cost.token_s if self._cost.token_s > 0 else UNLIMITED
        return max(int(min(by_time, UNLIMITED)), num_least - self._num_limited)

    def note_limited(self, num_tokens: int) -> None:
        """So many prompt tokens were added under a limit."""
        self._num_limited += num_tokens

    def charge_decode(self, sequence: Sequence) -> None:
        """A row that decodes was chosen."""
        self._charge(sequence, self._cost.decode_s)

    def charge_prefill(self, sequence: Sequence, num_tokens: int) -> None:
        """Prompt tokens of a sequence were chosen."""
        self._charge(sequence, num_tokens * self._cost.token_s)

    def refund(self, sequence: Sequence) -> None:
        """A sequence is not in the step after all."""
        if sequence in self._charges:
            self._charge(sequence, -self._charges[sequence])
            del self._charges[sequence]

    def settle(self, backlogged: Collection[TenantId]) -> None:
        """The step is made."""
        self._charges.clear()
        self._works.clear()
        self._weights.clear()
        self._num_limited = 0
        self._counters.settle(backlogged)

    def note_step(self, rows: Iterable[tuple[Sequence, Row]], seconds: float) -> None:
        """A step took `seconds`: prices follow, and requests learn what computing again has cost them."""
        entries = list(rows)
        num_prefill_tokens = sum(len(row.token_ids) for _, row in entries if not row.is_decode)
        num_decodes = sum(row.is_decode for _, row in entries)
        self._cost.add(num_prefill_tokens, num_decodes, seconds)
        expected_s = self._cost.expected_s(num_prefill_tokens, num_decodes)
        for sequence, row in entries:
            num_again = min(row.kv_length, sequence.num_lost) - row.start
            if num_again > 0:
                part = num_again * self._cost.token_s / expected_s if expected_s > 0 else 0.0
                sequence.owner.setbacks.recompute(num_again, seconds * min(1.0, part))

    def check_invariants(self, tenants: Collection[TenantId]) -> None:
        """Raises AssertionError where a tenant with work is not counted."""
        self._counters.check_invariants(tenants)
        assert not self._charges, "a step was not settled"

    def _charge(self, sequence: Sequence, seconds: float) -> None:
        tenant = sequence.owner.domain.tenant
        self._charges[sequence] = self._charges.get(sequence, 0.0) + seconds
        self._works[tenant] = self._works.get(tenant, 0.0) + seconds
        self._counters.charge(tenant, seconds, self.weight(tenant))
