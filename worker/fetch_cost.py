"""Whether it is faster to fetch blocks from another worker or to compute them, by measured speeds.

A fetch takes an opening and so much per block, measured for each peer. Where it was declined it has to be clearly
faster before it is tried again; where it was done it goes on until it is slower. Whatever was measured, a fetch ends
when computing would have taken as long: so one that turns out slow costs twice the time at most, once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from cache_store.clock import Clock
from cache_store.index import Incarnation

CLEARLY = 0.7
"""Of the time to compute: less than that a fetch has to take after it was declined."""

RETRY_EVERY = 32
"""So many times fetching is declined before it is tried again, with a few blocks."""

PROBE_BLOCKS = 4

MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.05, 10.0

UNMEASURED_TIMEOUT_S = 5.0
"""Where no speed of computing is known."""

MIN_REST_S, MAX_REST_S = 0.5, 30.0
"""For which a peer that failed is not asked; doubled each time."""

MAX_PEERS = 256

_PART = 0.3
"""Weight of a new measurement."""


@dataclass(slots=True)
class _Peer:
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
    """Speeds of one engine and its peers."""

    def __init__(self, prefill_tokens_per_s: Callable[[], float], block_size: int, clock: Clock) -> None:
        """`prefill_tokens_per_s` gives 0 before the first measurement: fetching is then taken to be the faster."""
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._block_size = block_size
        self._clock = clock
        self._peers: OrderedDict[Incarnation, _Peer] = OrderedDict()

    def num_worthwhile(self, peer: Incarnation, num_blocks: int) -> int:
        """How many of `num_blocks` to fetch: all of them, a few to measure, or none."""
        known = self._peers.get(peer)
        if known is None or num_blocks == 0:
            return num_blocks
        if self._clock.monotonic_s() < known.rests_until_s:
            return 0
        compute_s = self.compute_s(num_blocks)
        fetch_s = known.fetch_s(num_blocks)
        if fetch_s is None or compute_s == 0:
            return num_blocks
        if fetch_s < compute_s * (CLEARLY if known.is_declined else 1.0):
            known.is_declined, known.num_declined = False, 0
            return num_blocks
        known.is_declined = True
        known.num_declined += 1
        return min(num_blocks, PROBE_BLOCKS) if known.num_declined % RETRY_EVERY == 0 else 0

    def fetch_s(self, peer: Incarnation, num_blocks: int) -> float | None:
        """Seconds to fetch as many; None where that was never measured."""
        known = self._peers.get(peer)
        return None if known is None else known.fetch_s(num_blocks)

    def compute_s(self, num_blocks: int) -> float:
        """Seconds to compute as many blocks; 0 where no speed is known."""
        rate = self._prefill_tokens_per_s()
        return num_blocks * self._block_size / rate if rate > 0 else 0.0

    def timeout_s(self, num_blocks: int) -> float:
        """After which computing would have been the faster."""
        compute_s = self.compute_s(num_blocks)
        return min(MAX_TIMEOUT_S, max(MIN_TIMEOUT_S, compute_s)) if compute_s else UNMEASURED_TIMEOUT_S

    def note(self, peer: Incarnation, num_blocks: int, opening_s: float, transfer_s: float) -> None:
        """So many blocks came, whether all is well with it or not; 0: it had none, which says nothing of its speed."""
        if num_blocks == 0:
            return
        known = self._of(peer)
        gain = _PART if known.is_measured else 1.0
        known.opening_s += gain * (opening_s - known.opening_s)
        known.block_s += gain * (transfer_s / num_blocks - known.block_s)
        known.is_measured = True

    def note_late(self, peer: Incarnation, seconds: float) -> None:
        """Nothing came within so many seconds: an opening takes longer. More blocks may still be worth it."""
        known = self._of(peer)
        if seconds > known.opening_s:
            known.opening_s, known.is_measured = seconds, True

    def note_success(self, peer: Incarnation) -> None:
        """It answered, and with what it was asked for."""
        self._of(peer).num_failed = 0

    def note_failure(self, peer: Incarnation) -> None:
        """It is not asked for a while."""
        known = self._of(peer)
        rest_s = min(MAX_REST_S, MIN_REST_S * 2.0 ** min(known.num_failed, 16))
        known.num_failed += 1
        known.rests_until_s = self._clock.monotonic_s() + rest_s

    def _of(self, peer: Incarnation) -> _Peer:
        known = self._peers.pop(peer, None) or _Peer()
        self._peers[peer] = known
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        return known
