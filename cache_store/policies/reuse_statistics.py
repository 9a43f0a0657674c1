"""When blocks of a class are used again, learnt from what happens, and what keeping them is worth.

A class has a life table: events and seconds at risk in buckets of age, from which follows a hazard, the rate at which
blocks of that age are used again. While data are few the hazard is that of the class above, scaled to the class's own
number of events; at the very top it is a prior. The worth at an age is the best that any horizon promises: expected
hits per expected second of keeping, the Gittins index of the stopping problem (Gittins 1979; Aalto et al. 2009 for
ages). Knows nothing of requests or blocks; owned by the policy of one tenant.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NUM_BUCKETS = 28
FIRST_EDGE_S = 0.5
EDGES_S = (0.0, *(FIRST_EDGE_S * 2 ** (number / 2) for number in range(1, NUM_BUCKETS + 1)))
"""Ages at which buckets begin and end; each lasts 41 % longer than the one before, the last ends after 2.3 hours."""
PRIOR_REUSED = 0.35
PRIOR_MEDIAN_S = 60.0
PRIOR_SIGMA = 2.0
"""Before anything is known: a third of all prompts go on, half of those within a minute (log-normal). Broad, so that
traffic of another pace does not have to unlearn it first."""

SCALE_EVENTS = 8.0
"""Events that the scale of the class above counts as."""
SHAPE_EVENTS = 16.0
"""Events that each bucket of the class above counts as."""

_WIDTHS = np.diff(EDGES_S)
_TINY = 1e-9


def bucket_of(age_s: float) -> int:
    """The bucket of an age."""
    if age_s < EDGES_S[1]:
        return 0
    return min(NUM_BUCKETS - 1, int(2 * math.log2(age_s / FIRST_EDGE_S)))


class ReuseStatistics:
    """Life tables of a tree of classes, numbered from 0, the class above all."""

    def __init__(self) -> None:
        self._parents = [-1]
        self._depths = [0]
        self._events = [[0.0] * NUM_BUCKETS]
        self._exposed_s = [[0.0] * NUM_BUCKETS]
        self._worths: list[list[float]] = [_worths(_prior()[None, :])[0]]
        self._changed: set[int] = set()

    def __len__(self) -> int:
        """Number of classes."""
        return len(self._parents)

    def add_class(self, parent: int) -> int:
        """A new class below another one, whose worths it has until the next `refresh`."""
        self._parents.append(parent)
        self._depths.append(self._depths[parent] + 1)
        self._events.append([0.0] * NUM_BUCKETS)
        self._exposed_s.append([0.0] * NUM_BUCKETS)
        self._worths.append(self._worths[parent])
        self._changed.add(len(self._parents) - 1)
        return len(self._parents) - 1

    def note_passed(self, number: int, bucket: int) -> None:
        """Blocks of the class were not used again as long as they were in the bucket."""
        self._exposed_s[number][bucket] += EDGES_S[bucket + 1] - EDGES_S[bucket]
        self._changed.add(number)

    def note_reused(self, number: int, first_bucket: int, age_s: float) -> None:
        """Blocks of the class were used again at an age, having passed the buckets before `first_bucket`."""
        bucket = bucket_of(age_s)
        exposed_s = self._exposed_s[number]
        for passed in range(first_bucket, bucket):
            exposed_s[passed] += EDGES_S[passed + 1] - EDGES_S[passed]
        if bucket >= first_bucket:
            exposed_s[bucket] += min(age_s, EDGES_S[bucket + 1]) - EDGES_S[bucket]
        self._events[number][bucket] += 1.0
        self._changed.add(number)

    def worth(self, number: int, age_s: float) -> float:
        """Expected hits per second of keeping, between the values at the ends of the bucket."""
        bucket = bucket_of(age_s)
        worths = self._worths[number]
        start_s = EDGES_S[bucket]
        part = min(1.0, (age_s - start_s) / (EDGES_S[bucket + 1] - start_s))
        return worths[bucket] * (1 - part) + worths[bucket + 1] * part

    def refresh(self) -> None:
        """Takes all that was noted into the worths."""
        if not self._changed:
            return
        hazards = self._hazards()
        wanted = sorted(self._changed)
        for number, worths in zip(wanted, _worths(hazards[wanted]), strict=True):
            self._worths[number] = worths
        self._changed.clear()

    def _hazards(self) -> Floats:
        """Rates per second by class and bucket; a class above counts all that is noted below it."""
        events, exposed_s = np.array(self._events), np.array(self._exposed_s)
        parents, depths = np.array(self._parents), np.array(self._depths)
        levels = [np.flatnonzero(depths == depth) for depth in range(int(depths.max()) + 1)]
        for above, level in reversed(list(pairwise(levels))):
            assert len(above) > 0
            np.add.at(events, parents[level], events[level])
            np.add.at(exposed_s, parents[level], exposed_s[level])
        hazards = np.empty_like(events)
        for level in levels:
            expected = hazards[parents[level]] if level[0] else _prior()[None, :]
            scale = (events[level].sum(1) + SCALE_EVENTS) / ((exposed_s[level] * expected).sum(1) + SCALE_EVENTS)
            expected = np.maximum(expected * scale[:, None], _TINY)
            hazards[level] = (events[level] + SHAPE_EVENTS) / (exposed_s[level] + SHAPE_EVENTS / expected)
        return hazards


def _prior() -> Floats:
    reached = [0.0]
    for edge_s in EDGES_S[1:]:
        z = (math.log(edge_s) - math.log(PRIOR_MEDIAN_S)) / PRIOR_SIGMA
        reached.append(PRIOR_REUSED * 0.5 * math.erfc(-z / math.sqrt(2)))
    survival = 1 - np.array(reached)
    hazards: Floats = np.maximum(-np.diff(np.log(survival)) / _WIDTHS, _TINY)
    return hazards


def _worths(hazards: Floats) -> list[list[float]]:
    """Of each row of hazards, at the edges of the buckets: most hits per second that any horizon gives."""
    passing = hazards * _WIDTHS
    hit = -np.expm1(-passing)
    kept_s = hit / hazards
    cumulated = np.concatenate([np.zeros((len(hazards), 1)), np.cumsum(passing, axis=1)[:, :-1]], axis=1)
    worths = np.empty((len(hazards), NUM_BUCKETS + 1))
    for start in range(NUM_BUCKETS):
        survival = np.exp(cumulated[:, start : start + 1] - cumulated[:, start:])
        hits = np.cumsum(survival * hit[:, start:], axis=1)
        seconds = np.cumsum(survival * kept_s[:, start:], axis=1)
        worths[:, start] = (hits / seconds).max(axis=1)
    worths[:, -1] = worths[:, -2]
    rows: list[list[float]] = worths.tolist()
    return rows
