"""Curves of reuse on public traces, beside what the replayed pool hits with each capacity. In points of per cent."""

from __future__ import annotations

import pytest

from cache_store.policies.lru import Lru
from cache_store.replay.simulation import ReplayOptions, TraceTenant, replay
from cache_store.replay.trace import Trace
from cache_store.reuse_curves import USUAL_ROOM
from cache_store.shadow import WatchRules
from tests.support.public_traces import CLAUDE_CODE, CONVERSATION, public_trace

MOST_POINTS = 2.0

RULES = WatchRules(curve_room=USUAL_ROOM)


def difference(trace: Trace, percents: tuple[float, ...], follow_at: float) -> dict[float, float]:
    """By capacity, the curve of one replay minus the hits of a replay of its own."""
    num_unique = trace.num_unique_blocks()
    num_blocks = {percent: int(num_unique * percent / 100) for percent in (*percents, follow_at)}
    followed = replay([TraceTenant("t", trace)], ReplayOptions(num_blocks[follow_at], Lru, watch_rules=RULES))
    alone = {
        percent: replay([TraceTenant("t", trace)], ReplayOptions(num_blocks[percent], Lru)).hit_rate
        for percent in percents
    }
    curve = followed.curves["t"]
    return {percent: 100 * (curve.hit_share(num_blocks[percent]) - alone[percent]) for percent in percents}


def test_the_curve_of_conversations() -> None:
    trace = public_trace(CONVERSATION).select(lambda session: session % 4 == 0)
    found = difference(trace, (2, 5, 20), 20)
    assert max(map(abs, found.values())) <= MOST_POINTS, found


def test_the_curve_of_agents() -> None:
    trace = public_trace(CLAUDE_CODE).select(lambda session: session % 40 == 0)
    found = difference(trace, (5, 20), 20)
    assert max(map(abs, found.values())) <= MOST_POINTS, found


@pytest.mark.nightly
@pytest.mark.parametrize("name", [CONVERSATION, CLAUDE_CODE])
def test_the_curves_of_whole_traces(name: str) -> None:
    found = difference(public_trace(name), (1, 2, 5, 10, 20), 20)
    assert max(map(abs, found.values())) <= MOST_POINTS, found
