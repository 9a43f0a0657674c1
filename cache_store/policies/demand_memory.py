"""What recent requests of a tenant left behind, also where it has been evicted since: who goes on from where.

Each request is remembered by the digests of the last blocks of its parts. A later one that has such a block has all
before it: so the memory tells demand, whether the cache could meet it or not, and what is learnt from it does not
depend on what was evicted. Bounded by the number of requests. A digest that collides spoils a statistic, nothing else.
Knows neither classes nor worths; owned by the policy of one tenant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from cache_store.policy import UsedBlock

MAX_REQUESTS = 16_384


class Region(IntEnum):
    """Part of a request's blocks."""

    EARLIER = 0
    """What an earlier request had."""
    NEW = 1
    """The rest of its prompt."""
    ANSWER = 2
    """Its answer, at least the last block."""


class Watched:
    """One part of a request until its blocks are used again or forgotten."""

    __slots__ = ("bucket", "class_number", "is_open", "key", "time_s")

    def __init__(self, key: bytes, class_number: int, time_s: float) -> None:
        self.key = key
        """Digest of its last block."""
        self.class_number = class_number
        self.time_s = time_s
        self.bucket = 0
        """First bucket of age that it has not passed."""
        self.is_open = True


class Remembered:
    """A request, whose parts lie one behind the other."""

    __slots__ = ("base", "num_siblings", "parts", "prompt_tokens", "session", "time_s", "turn")

    def __init__(
        self, time_s: float, turn: int, prompt_tokens: int, session: bytes, base: int, num_siblings: int
    ) -> None:
        self.time_s = time_s
        self.turn = turn
        self.prompt_tokens = prompt_tokens
        self.session = session
        self.base = base
        """Leading blocks that it has in common with other sessions."""
        self.num_siblings = num_siblings
        """Requests before it that went on from the same place, as far as they followed each other."""
        self.parts: dict[Region, Watched] = {}
        """Those that have blocks, in their order."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a request goes on from."""

    request: Remembered
    region: Region
    """Where it goes on from: it has all of that part and of those before."""
    num_blocks: int
    """Its leading blocks that are known."""


class DemandMemory:
    """The latest requests."""

    def __init__(self, max_requests: int = MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._places: dict[bytes, tuple[Remembered, Region]] = {}
        self._requests: deque[Remembered] = deque()

    def __len__(self) -> int:
        """Requests that are remembered."""
        return len(self._requests)

    def find(self, blocks: Sequence[UsedBlock]) -> Found | None:
        """The request whose remembered block is the deepest among `blocks`."""
        digests = [block.digest for block in blocks]
        deepest = next(filter(self._places.__contains__, reversed(digests)), None)
        if deepest is None:
            return None
        return Found(*self._places[deepest], digests.index(deepest) + 1)

    def add(self, request: Remembered) -> None:
        """Remembers a request, and forgets the oldest where there are too many."""
        for region, part in request.parts.items():
            self._places[part.key] = (request, region)
        self._requests.append(request)
        if len(self._requests) > self._max_requests:
            self._forget(self._requests.popleft())

    def _forget(self, request: Remembered) -> None:
        for part in request.parts.values():
            part.is_open = False
            place = self._places.get(part.key)
            if place is not None and place[0] is request:
                del self._places[part.key]
