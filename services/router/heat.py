"""How many requests have lately begun with the same blocks: what a copy of them at another worker would be used for.

Counted is each request at one block, the last one that some worker holds of it. So requests that ask something new of
one long document count together, and the turns of a conversation, each of which goes on where the last one ended, do
not. A count fades by itself. Keyed by domain like the index, so that no tenant's requests change where another's go;
each router counts its own. Owned by one event loop.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from cache_store.clock import Clock
from cache_store.domain import DomainTag

FADE_S = 30.0
"""After so long a request counts 1/e. A steady rate counts as what comes in this time."""

MAX_PREFIXES = 16_384
"""Those that were not asked for longest are forgotten."""

_Prefix = tuple[DomainTag, bytes]


class PrefixHeat:
    """Of one router."""

    def __init__(self, clock: Clock, max_prefixes: int = MAX_PREFIXES) -> None:
        self._clock = clock
        self._max_prefixes = max_prefixes
        self._counts: OrderedDict[_Prefix, tuple[float, float]] = OrderedDict()
        """What it was, and when."""

    def note(self, domain_tag: DomainTag, last_held: bytes) -> float:
        """A request comes of whose blocks `last_held` is the last that is held. Returns how many came before it."""
        now_s = self._clock.monotonic_s()
        before = self._pop((domain_tag, last_held), now_s)
        self._counts[domain_tag, last_held] = (before + 1.0, now_s)
        if len(self._counts) > self._max_prefixes:
            self._counts.popitem(last=False)
        return before

    def _pop(self, prefix: _Prefix, now_s: float) -> float:
        count, at_s = self._counts.pop(prefix, (0.0, now_s))
        return count * math.exp((at_s - now_s) / FADE_S)
