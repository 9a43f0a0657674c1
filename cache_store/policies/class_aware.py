"""Keeps what promises most hits per second of keeping it, by classes of use, learnt online for each tenant.

A request's blocks fall into parts: those that an earlier request had, the rest of its prompt, and its answer (at least
the last block). The class of a part is which of these it is, why the answer ended, which turn of its session it was,
how much was new in the prompt, how long the answer was, and how long the session had paused before. What becomes of
the parts is seen in the demand of later requests (`cache_store/policies/demand_memory.py`), so nothing that is learnt
depends on what was evicted or on other tenants. Worths: `cache_store/policies/reuse_statistics.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence

from cache_store.policies.demand_memory import DemandMemory, Found, Region, Remembered, Watched
from cache_store.policies.reuse_statistics import EDGES_S, NUM_BUCKETS, ReuseStatistics
from cache_store.policy import WORTHLESS, ClassId, Outcome, Part, Use, UsedBlock

TURNS = (2, 3, 4, 6)
FIRST_TOKENS = (2_000, 16_000)
NEW_TOKENS = (1_500, 4_000)
OUTPUT_TOKENS = (60, 250)
PAUSES_S = (60.0, 200.0)
"""Where levels of the features begin."""
COMMON_SIBLINGS = 2
"""A place from which as many requests went on before is no session's own: what goes on from there is a first turn."""
MAX_STOPS = 8
"""Reasons to stop that are told apart; a tenant's stop tokens are its own choice, so there may be any number."""
MAX_CLASSES = 512
"""Of one tenant: what a step may have to look through does not depend on how varied its requests are."""
ALWAYS_APART = 2
"""Leading features, of few values each, that are told apart from the first request on: stop reason and part."""
MIN_USES = 8
"""Of a class before it is divided further."""
REFRESH_REQUESTS = 32
MAX_REFRESH_REQUESTS = 512
"""Requests between two refreshes of the worths: few while there is little data."""

PASS_EVERY_S = 0.5
"""How often the ages of what is watched are looked at."""

_ENDED = ClassId(-1)
"""What its session has no use for any more."""


class ClassAware:
    """Statistics of one tenant in one pool."""

    def __init__(self) -> None:
        self._statistics = ReuseStatistics()
        self._memory = DemandMemory()
        self._watched: list[deque[Watched]] = [deque() for _ in range(NUM_BUCKETS)]
        self._classes: dict[tuple[object, ...], int] = {(): 0}
        self._num_uses: Counter[int] = Counter()
        self._stops: dict[str, int] = {}
        self._next_pass_s = 0.0
        self._num_requests = 0
        self._refresh_at = 1

    def unknown_use(self, now_s: float) -> Use:
        """See `EvictionPolicy.unknown_use`."""
        return Use(now_s, ClassId(0))

    def uses(
        self,
        outcome: Outcome,
        blocks: Sequence[UsedBlock],
        num_prompt_blocks: int,
        now_s: float,
    ) -> Sequence[Part]:
        """See `EvictionPolicy.uses`."""
        self._pass(now_s)
        found = self._memory.find(blocks)
        if found is not None:
            self._note_reuse(found, now_s)
        self._refresh()
        num_earlier = max(0 if found is None else found.num_blocks, _num_used_since(-math.inf, blocks))
        request = _remember(outcome, found, blocks, now_s)
        features = self._features(outcome, found, now_s)
        if outcome.session_end:
            return self._last_uses(outcome, request, features, len(blocks))
        ends = (num_earlier, max(num_earlier, min(num_prompt_blocks, len(blocks) - 1)), len(blocks))
        parts: list[Part] = []
        start = 0
        for region, end in zip(Region, ends, strict=True):
            if end > start:
                number = self._class_of((features[0], region, *features[1:]))
                request.parts[region] = self._watch(blocks[end - 1].digest, number, now_s)
                parts.append(Part(_use(outcome, ClassId(number), request), end))
                start = end
        self._memory.add(request)
        return parts

    def value(self, class_id: ClassId, age_s: float) -> float:
        """See `EvictionPolicy.value`."""
        return self._statistics.worth(class_id, age_s) if class_id >= 0 else WORTHLESS

    def _features(self, outcome: Outcome, found: Found | None, now_s: float) -> tuple[int, ...]:
        """Stop reason, turn, new tokens, answer, pause: what tells most about all classes below it comes first.

        Who names sessions is told apart from who does not: the one may say when they end.
        """
        stop = 2 * self._number_of(outcome.stop) + bool(outcome.session)
        before = _turn_before(found)
        answer = bisect_right(OUTPUT_TOKENS, outcome.output_tokens)
        if found is None or before == 0:
            return stop, 0, bisect_right(FIRST_TOKENS, outcome.prompt_tokens), answer, -1
        num_new = outcome.prompt_tokens - found.request.prompt_tokens
        return (
            stop,
            bisect_right(TURNS, before + 1),
            bisect_right(NEW_TOKENS, num_new) if num_new >= 0 else len(NEW_TOKENS),
            answer,
            bisect_right(PAUSES_S, now_s - found.request.time_s),
        )

    def _number_of(self, stop: str) -> int:
        if stop not in self._stops and len(self._stops) < MAX_STOPS:
            self._stops[stop] = len(self._stops)
        return self._stops.get(stop, MAX_STOPS)

    def _class_of(self, features: tuple[int, ...]) -> int:
        """Number of a class; those above it have the leading features.

        A class comes into being when the one above it has been used MIN_USES times, up to MAX_CLASSES.
        """
        number = 0
        for depth in range(1, len(features) + 1):
            known = self._classes.get(features[:depth])
            if known is None:
                is_new = depth > ALWAYS_APART and self._num_uses[number] < MIN_USES
                if is_new or len(self._classes) >= MAX_CLASSES:
                    break
                known = self._classes[features[:depth]] = self._statistics.add_class(number)
            number = known
        self._num_uses[number] += 1
        return number

    def _watch(self, digest: bytes, number: int, now_s: float) -> Watched:
        watched = Watched(digest, number, now_s)
        self._watched[0].append(watched)
        return watched

    def _note_reuse(self, found: Found, now_s: float) -> None:
        """All parts up to the one that was found have been used again."""
        for region, part in found.request.parts.items():
            if region <= found.region and part.is_open:
                self._statistics.note_reused(part.class_number, part.bucket, now_s - part.time_s)
                part.is_open = False

    def _pass(self, now_s: float) -> None:
        """Moves what nobody used again through the buckets of age."""
        if now_s < self._next_pass_s:
            return
        for bucket in range(NUM_BUCKETS - 2, -1, -1):
            queue, due_s = self._watched[bucket], now_s - EDGES_S[bucket + 1]
            while queue and queue[0].time_s <= due_s:
                part = queue.popleft()
                if part.is_open:
                    self._statistics.note_passed(part.class_number, bucket)
                    part.bucket = bucket + 1
                    self._watched[bucket + 1].append(part)
        self._watched[-1].clear()
        self._next_pass_s = now_s + PASS_EVERY_S

    def _refresh(self) -> None:
        self._num_requests += 1
        if self._num_requests >= self._refresh_at:
            pause = min(MAX_REFRESH_REQUESTS, max(REFRESH_REQUESTS, self._num_requests // REFRESH_REQUESTS))
            self._refresh_at = self._num_requests + pause
            self._statistics.refresh()

    def _last_uses(
        self, outcome: Outcome, request: Remembered, features: tuple[int, ...], num_blocks: int
    ) -> Sequence[Part]:
        """Only what the session has in common with others is kept. Its end says nothing of those that go on."""
        ended = Part(_use(outcome, _ENDED, request), num_blocks)
        if request.base == 0:
            return (ended,)
        number = self._class_of((features[0], Region.EARLIER, *features[1:]))
        return Part(_use(outcome, ClassId(number), request), request.base), ended


def _turn_before(found: Found | None) -> int:
    """Turn of the request that this one goes on from; 0 where it starts a session.

    Where it branches off before a request's own part, it is that request's sibling.
    """
    if found is None:
        return 0
    if found.region is not Region.EARLIER:
        return found.request.turn
    return found.request.turn - 1 if found.request.num_siblings + 1 < COMMON_SIBLINGS else 0


def _remember(outcome: Outcome, found: Found | None, blocks: Sequence[UsedBlock], now_s: float) -> Remembered:
    turn = _turn_before(found) + 1
    if found is None:
        base = _num_used_since(-math.inf, blocks)
        return Remembered(now_s, turn, outcome.prompt_tokens, outcome.session, base, 0)
    before = found.request
    is_branch = found.region is Region.EARLIER
    num_siblings = before.num_siblings + 1 if is_branch else 0
    if not is_branch or (outcome.session and outcome.session == before.session):
        base = max(before.base, _num_used_since(before.time_s, blocks))
    else:
        base = max(found.num_blocks, _num_used_since(-math.inf, blocks))
    return Remembered(now_s, turn, outcome.prompt_tokens, outcome.session, base, num_siblings)


def _num_used_since(time_s: float, blocks: Sequence[UsedBlock]) -> int:
    """Leading blocks that others have used after a time. Whoever uses a block uses all before it."""
    low, high = 0, len(blocks)
    while low < high:
        middle = (low + high) // 2
        use = blocks[middle].use
        if use is not None and use.time_s > time_s:
            low = middle + 1
        else:
            high = middle
    return low


def _use(outcome: Outcome, class_id: ClassId, request: Remembered) -> Use:
    num_tokens = outcome.prompt_tokens + outcome.output_tokens
    now_s = request.time_s
    return Use(now_s, class_id, num_tokens, request.turn, outcome.session, now_s + outcome.ttl_s)
