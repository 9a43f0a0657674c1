"""Load or compute again: whichever the measured speeds say is there sooner."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cache_store.tier_kind import TierKind
from worker.swap_cost import RETRY_EVERY, SwapCost

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Lying:
    tier: TierKind


HOST, DISK = Lying(TierKind.HOST), Lying(TierKind.DISK)


def cost(tokens_per_s: float, host_s: float = 0.0, disk_s: float = 0.0) -> SwapCost:
    """Speeds as measured."""
    seconds = {TierKind.HOST: host_s, TierKind.DISK: disk_s}
    return SwapCost(lambda: tokens_per_s, seconds.__getitem__)


@pytest.mark.parametrize(
    ("tokens_per_s", "host_s", "disk_s", "sources", "num_queued", "expected"),
    [
        (400.0, 0.001, 0.01, (HOST,) * 3, 0, 3),
        (400.0, 0.001, 0.01, (HOST, HOST, DISK), 0, 3),
        (400.0, 0.001, 0.5, (HOST, HOST, DISK), 0, 2),
        (400.0, 0.5, 0.5, (HOST, HOST, DISK), 0, 0),
        (400.0, 0.001, 0.5, (DISK,) * 4, 0, 0),
        (400.0, 0.01, 0.01, (HOST,), 100, 0),
        (400.0, 0.01, 0.01, (HOST,) * 64, 100, 64),
        (0.0, 9.0, 9.0, (HOST, DISK), 0, 2),
        (400.0, 0.0, 0.0, (HOST, DISK), 50, 2),
        (400.0, 0.0, 0.0, (), 0, 0),
    ],
    ids=[
        "host is fast",
        "disk is fast too",
        "only what host has",
        "both are slow",
        "disk is slow",
        "the queue eats the gain",
        "the queue is worth it",
        "nothing computed yet",
        "nothing loaded yet",
        "nothing there",
    ],
)
def test_loads_as_many_blocks_as_gain_most(
    tokens_per_s: float, host_s: float, disk_s: float, sources: tuple[Lying, ...], num_queued: int, expected: int
) -> None:
    assert cost(tokens_per_s, host_s, disk_s).num_worthwhile(sources, BLOCK_SIZE, num_queued) == expected


def test_what_was_slow_is_tried_again_now_and_then() -> None:
    slow = cost(400.0, disk_s=0.5)
    answers = [slow.num_worthwhile((DISK,) * 2, BLOCK_SIZE, 0) for _ in range(2 * RETRY_EVERY)]
    assert answers.count(2) == 2
    assert answers[RETRY_EVERY - 1] == 2
