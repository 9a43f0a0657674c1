"""Whether it is faster to fetch blocks from another worker or to compute them, by measured speeds.

A fetch takes an opening and so much per block, measured for each tenant and peer by that tenant's fetches: those of one
tenant, be they slow, late or failed, change nothing of what is fetched for another one. Where it was declined it has to
be clearly faster before it is tried again; where it was done it goes on until it is slower. Whatever was measured, a
fetch ends when computing would have taken as long. A tenant that has measured nothing of a peer takes fetching to be
the faster, and pays little to find out: its first fetch ends in half of that time, and what came until then is used.

The speed of computing is this worker's, over all tenants. That nobody listens where a peer was is known to the channel
to it (`worker/rpc_fetch.py`) for a second at most, for all tenants: no tenant's question makes it so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cache_store.clock import Clock
from cache_store.domain import TenantId
from cache_store.index import Incarnation

CLEARLY = 0.7
"""Of the time to compute: less than that a fetch has to take after it was declined."""

RETRY_EVERY = 32
"""So many times fetching is declined before it is tried again, with a few blocks."""

PROBE_BLOCKS = 4

FIRST_PART = 0.5
"""Of the time to compute: so long a tenant's first fetch from a peer may take."""

MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.05, 10.0

UNMEASURED_TIMEOUT_S = 5.0
"""Where no speed of computing is known."""

MIN_REST_S, MAX_REST_S = 0.5, 30.0
"""For which a peer that failed is not asked; doubled each time."""

MAX_PEERS, MAX_TENANTS = 64, 1_024
"""So many peers are remembered for a tenant, and so many tenants, those that were asked or asked last. A tenant has one
place among tenants, and no other one's among peers."""

_PART = 0.3
"""Weight of a new measurement."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(slots=True)
class _Peer:
    """As one tenant knows it."""

    opening_s: float = 0.0
    block_s: float = 0.0
    is_measured: bool = False
    is_declined: bool = False
    num_declined: int = 0
    num_failed: int = 0
    rests_until_s: float = 0.0

    def fetch_s(self, num_blocks: int) -> float | None:
        return self.opening_s + num_blocks * self.block_s if self.is_measured else None


class FetchCost:
    """Speed of one engine, and of its peers for each tenant."""

    def __init__(self, prefill_tokens_per_s: Callable[[], float], block_size: int, clock: Clock) -> None:
        """`prefill_tokens_per_s` gives 0 before the first measurement: fetching is then taken to be the faster."""
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._block_size = block_size
        self._clock = clock
        self._tenants: OrderedDict[TenantId, OrderedDict[Incarnation, _Peer]] = OrderedDict()

    @property
    def num_remembered(self) -> int:
        """Peers, of each tenant by itself."""
        return sum(map(len, self._tenants.values()))

    def num_worthwhile(self, tenant: TenantId, peer: Incarnation, num_blocks: int) -> int:
        """How many of `num_blocks` to fetch: all of them, a few to measure, or none."""
        known = self._find(tenant, peer)
        if known is None or num_blocks == 0:
            return num_blocks
        if self._clock.monotonic_s() < known.rests_until_s:
            return 0
        compute_s = self._compute_s(num_blocks)
        fetch_s = known.fetch_s(num_blocks)
        if fetch_s is None or compute_s == 0:
            return num_blocks
        if fetch_s < compute_s * (CLEARLY if known.is_declined else 1.0):
            known.is_declined, known.num_declined = False, 0
            return num_blocks
        known.is_declined = True
        known.num_declined += 1
        return min(num_blocks, PROBE_BLOCKS) if known.num_declined % RETRY_EVERY == 0 else 0

    def fetch_s(self, tenant: TenantId, peer: Incarnation, num_blocks: int) -> float | None:
        """Seconds to fetch as many; None where the tenant has never measured that."""
        known = self._find(tenant, peer)
        return None if known is None else known.fetch_s(num_blocks)

    def worth_s(self, num_blocks: int) -> float:
        """After which computing as many blocks would have been the faster."""
        compute_s = self._compute_s(num_blocks)
        return min(MAX_TIMEOUT_S, max(MIN_TIMEOUT_S, compute_s)) if compute_s else UNMEASURED_TIMEOUT_S

    def timeout_s(self, tenant: TenantId, peer: Incarnation, num_blocks: int) -> float:
        """After which a fetch ends."""
        known = self._find(tenant, peer)
        is_first = known is None or not known.is_measured
        return max(MIN_TIMEOUT_S, self.worth_s(num_blocks) * (FIRST_PART if is_first else 1.0))

    def note(self, tenant: TenantId, peer: Incarnation, num_blocks: int, opening_s: float, transfer_s: float) -> None:
        """So many blocks came, whether all is well with it or not; 0: it had none, which says nothing of its speed."""
        if num_blocks == 0:
            return
        known = self._of(tenant, peer)
        gain = _PART if known.is_measured else 1.0
        known.opening_s += gain * (opening_s - known.opening_s)
        known.block_s += gain * (transfer_s / num_blocks - known.block_s)
        known.is_measured = True

    def note_late(self, tenant: TenantId, peer: Incarnation, seconds: float) -> None:
        """Nothing came within so many seconds: an opening takes longer. More blocks may still be worth it."""
        known = self._of(tenant, peer)
        if seconds > known.opening_s:
            known.opening_s, known.is_measured = seconds, True

    def note_success(self, tenant: TenantId, peer: Incarnation) -> None:
        """It answered, and with what it was asked for."""
        self._of(tenant, peer).num_failed = 0

    def note_failure(self, tenant: TenantId, peer: Incarnation) -> None:
        """It is not asked for the tenant for a while."""
        known = self._of(tenant, peer)
        rest_s = min(MAX_REST_S, MIN_REST_S * 2.0 ** min(known.num_failed, 16))
        known.num_failed += 1
        known.rests_until_s = self._clock.monotonic_s() + rest_s

    def check_invariants(self) -> None:
        """Raises AssertionError where the books do not agree."""
        assert len(self._tenants) <= MAX_TENANTS, "too many tenants are remembered"
        assert all(0 < len(peers) <= MAX_PEERS for peers in self._tenants.values()), "too many peers are remembered"

    def _compute_s(self, num_blocks: int) -> float:
        """Seconds to compute as many blocks; 0 where no speed is known."""
        rate = self._prefill_tokens_per_s()
        return num_blocks * self._block_size / rate if rate > 0 else 0.0

    def _find(self, tenant: TenantId, peer: Incarnation) -> _Peer | None:
        return self._of(tenant, peer) if peer in self._tenants.get(tenant, ()) else None

    def _of(self, tenant: TenantId, peer: Incarnation) -> _Peer:
        peers = _renewed(self._tenants, tenant, OrderedDict[Incarnation, _Peer], MAX_TENANTS)
        return _renewed(peers, peer, _Peer, MAX_PEERS)


def _renewed(values: OrderedDict[_Key, _Value], key: _Key, make: Callable[[], _Value], num_most: int) -> _Value:
    """The value of a key, made where there is none, as the last one used; the first goes where there are too many."""
    value = values.setdefault(key, make())
    values.move_to_end(key)
    if len(values) > num_most:
        values.popitem(last=False)
    return value
