"""Curves of reuse on public traces, beside what the replayed pool hits with each capacity. In points of per cent."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from cache_store.policies.lru import Lru
from cache_store.quota import TenantQuota, TierShare
from cache_store.replay.simulation import ReplayOptions, TraceTenant, replay
from cache_store.replay.trace import Trace
from cache_store.reuse_curves import USUAL_ROOM
from cache_store.shadow import WatchRules
from cache_store.tier_kind import TierKind
from tests.support.public_traces import CLAUDE_CODE, CONVERSATION, public_trace

MOST_POINTS = 2.0

RULES = WatchRules(curve_room=USUAL_ROOM)

PART = 0.25
"""Of the pool, which the tenant has: what it would hit with more is an estimate by a sample."""


def differences(trace: Trace, pool: float, percents: tuple[float, ...]) -> dict[float, float]:
    """By capacity, the curve of a tenant with a part of a pool minus the hits of a replay with that capacity.

    Capacities are in per cent of the trace's unique blocks.
    """
    num_unique = trace.num_unique_blocks()

    def num_blocks(percent: float) -> int:
        return int(num_unique * percent / 100)

    quota = TenantQuota(MappingProxyType({TierKind.DEVICE: TierShare(0.0, PART)}))
    followed = replay([TraceTenant("t", trace, quota)], ReplayOptions(num_blocks(pool), Lru, watch_rules=RULES))
    curve = followed.curves["t"]
    found = {}
    for percent in percents:
        alone = replay([TraceTenant("t", trace)], ReplayOptions(num_blocks(percent), Lru))
        found[percent] = 100 * (curve.hit_share(num_blocks(percent)) - alone.hit_rate)
    return found


def test_the_curve_of_conversations() -> None:
    trace = public_trace(CONVERSATION).select(lambda session: session % 4 == 0)
    found = differences(trace, 20, (2, 5, 6, 10))
    assert max(map(abs, found.values())) <= MOST_POINTS, found


@pytest.mark.nightly  # reading the trace takes longest
def test_the_curve_of_agents() -> None:
    trace = public_trace(CLAUDE_CODE).select(lambda session: session % 20 == 0)
    found = differences(trace, 40, (10, 12, 20))
    assert max(map(abs, found.values())) <= MOST_POINTS, found


@pytest.mark.nightly
@pytest.mark.parametrize("name", [CONVERSATION, CLAUDE_CODE])
def test_the_curves_of_whole_traces(name: str) -> None:
    found = differences(public_trace(name), 20, (2, 5, 6, 7.5, 10, 20))
    assert max(map(abs, found.values())) <= MOST_POINTS, found
