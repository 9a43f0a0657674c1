"""What was expected of a run, and the sentences about what was missed."""

from __future__ import annotations

import pytest

from cache_store.errors import InvalidRequestError
from services.loadtest.reporting.expectations import Expectations, Slo, missed, parse_share, parse_slo
from tests.support.loadtest_runs import row

ROWS = [row(index) for index in range(100)]
"""All have their first token after 41 ms; 93.75 % of each prompt is cached."""


def test_what_is_kept_says_nothing() -> None:
    slos = tuple(map(parse_slo, ("ttft:p99:50", "ttft:mean:50", "tpot:p50:30", "itl:p99.9:30", "e2el:p95:300")))
    assert missed(Expectations(0.93, slos), ROWS) == []


def test_what_is_missed_says_by_how_much() -> None:
    expected = Expectations(0.99, (parse_slo("ttft:p99:20"), parse_slo("tpot:p50:26")))
    by_rate, by_time = missed(expected, ROWS)
    assert "93.8%, 5.2 points below the 99.0%" in by_rate
    assert "ttft p99 is 41.0 ms, 21.0 ms (105%) above" in by_time
    assert "ttft:p99:20" in by_time


def test_what_was_not_measured_is_missed() -> None:
    failed = [row(0, status="UNAVAILABLE")]
    expected = Expectations(0.0, (parse_slo("ttft:p99:500"),))
    assert len(missed(expected, failed)) == 2


def test_only_what_came_to_its_end_counts() -> None:
    rows = [*ROWS, row(100, status="INTERRUPTED", away_s=99.0)]
    assert missed(Expectations(None, (parse_slo("ttft:p99:50"),)), rows) == []


def test_levels_are_written_as_they_are_read() -> None:
    assert parse_slo("ttft:p99:500") == Slo("ttft", 99.0, 500.0)
    assert parse_slo("e2el:mean:1000").statistic == "mean"
    assert parse_slo("itl:99.9:40").text == "itl:p99.9:40"


@pytest.mark.parametrize(
    "text",
    [
        "ttft:500",
        "speed:p99:5",
        "ttft:p100:5",
        "ttft:p99:fast",
        "ttft:p99:0",
        "ttft:p99:nan",
        "ttft:p99:inf",
        "ttft:px:5",
        "",
    ],
)
def test_other_levels_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_slo(text)


def test_parts_of_a_whole() -> None:
    assert parse_share("0.6") == parse_share("60%") == 0.6
    for text in ("60", "-1%", "many", "1.1"):
        with pytest.raises(InvalidRequestError):
            parse_share(text)
