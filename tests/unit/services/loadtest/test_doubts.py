"""Each fault that load tests are known for is told; a good run tells nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.loadtest.conditions import CacheState, MachineLoad
from services.loadtest.doubts import Evidence, doubts
from services.loadtest.records import RequestRow

ROW = RequestRow(
    0,
    "a",
    "w",
    intended_s=1.0,
    sent_s=1.001,
    end_s=2.0,
    status="OK",
    prompt_tokens=100,
    cached_tokens=16,
    cacheable_tokens=16,
)
GOOD = Evidence((ROW,), CacheState.PRIMED, True, 0, 0.1, MachineLoad(0.0, 0.0, 0.1, 1 << 30), 2, 100.0)


def test_a_good_run_raises_none() -> None:
    assert doubts(GOOD) == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rows": (replace(ROW, cached_tokens=17),)}, "the cache was warm"),
        ({"rows": (replace(ROW, sent_s=1.5),)}, "500 ms (p99) later than meant"),
        ({"rows": (replace(ROW, degraded=True),)}, "routed with less than usual"),
        ({"rows": (ROW, replace(ROW, status="UNAVAILABLE"))}, "1 of 2 requests failed"),
        ({"rows": ()}, "nothing to go by"),
        ({"cache_state": CacheState.KEPT}, "hits of earlier runs are counted"),
        ({"miscounted": 3}, "3 prompts have another number of tokens"),
        ({"client_cpu_share": 0.97}, "97 % of a core"),
        ({"load_before": MachineLoad(0.0, 0.0, 0.8, 1)}, "80 % of 2 cores were in use before"),
        ({"server_prompt_tokens": 400.0}, "75 % of its prompt tokens were not this run's"),
    ],
)
def test_each_fault_is_told(change: dict[str, object], told: str) -> None:
    assert told in "\n".join(doubts(replace(GOOD, **change)))  # type: ignore[arg-type]


def test_a_closed_loop_has_no_schedule_to_be_late_for() -> None:
    assert doubts(replace(GOOD, open_loop=False, rows=(replace(ROW, sent_s=1.5),))) == ()
