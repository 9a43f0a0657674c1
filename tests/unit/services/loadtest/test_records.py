"""What a run writes is read back as it was, and what is wrong with a file is told with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.errors import InvalidRequestError
from services.loadtest.json_codec import from_json, to_json
from services.loadtest.records import (
    CacheOutcome,
    RequestRow,
    ServerSample,
    ServerTimes,
    TenantSample,
    TierSample,
    TierTokens,
    WorkerSample,
)
from services.loadtest.results_folder import read_rows, write_rows

SECONDS = st.floats(0, 1e6, allow_nan=False)
WHOLE = st.integers(0, 1 << 40)
ROWS = st.builds(
    RequestRow,
    index=WHOLE,
    tenant=st.text(),
    workload=st.text(),
    intended_s=SECONDS,
    sent_s=SECONDS,
    end_s=SECONDS,
    status=st.sampled_from(["OK", "INTERRUPTED", "HTTP_429"]),
    session=st.none() | st.text(),
    turn=st.none() | WHOLE,
    prefix_group=st.none() | st.text(),
    first_token_s=st.none() | SECONDS,
    arrivals_s=st.lists(SECONDS).map(tuple),
    arrival_tokens=st.lists(WHOLE).map(tuple),
    cached_by_tier=st.builds(TierTokens, device=WHOLE, host=WHOLE),
    cacheable_tokens=st.none() | WHOLE,
    degraded=st.booleans(),
    server=st.none() | st.builds(ServerTimes, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS),
)
TENANTS = st.lists(st.builds(TenantSample, st.text(), *[WHOLE] * 9)).map(tuple)
TIERS = st.lists(st.builds(TierSample, st.text(), *[WHOLE] * 5)).map(tuple)
WORKERS = st.builds(WorkerSample, st.text(), *[WHOLE] * 8, tiers=TIERS, tenants=TENANTS)
SAMPLES = st.builds(
    ServerSample, st.floats(-10, 1e6), WHOLE, WHOLE, WHOLE, st.lists(st.text()).map(tuple), st.lists(WORKERS).map(tuple)
)


def row(**changed: object) -> RequestRow:
    plain = {"index": 0, "tenant": "a", "workload": "w", "intended_s": 1.0, "sent_s": 1.5, "end_s": 4.0, "status": "OK"}
    return RequestRow(**{**plain, **changed})  # type: ignore[arg-type]


@given(st.one_of(ROWS, SAMPLES))
def test_what_is_written_is_read_back(value: RequestRow | ServerSample) -> None:
    assert from_json(type(value), json.loads(json.dumps(to_json(value))), "value") == value


def test_rows_go_through_a_file(tmp_path: Path) -> None:
    rows = (row(), row(index=1, error="né\n"))
    write_rows(tmp_path / "rows", rows)
    assert read_rows(tmp_path / "rows", RequestRow) == rows
    assert read_rows(tmp_path / "missing", RequestRow) == ()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "rows:2 is no JSON"),
        ("[]", "rows:2 is []; an object"),
        ('{"index": 1}', "lacks tenant"),
        (json.dumps(to_json(row()) | {"index": "1"}), "rows:2.index is '1'; a value of type int"),
        (json.dumps(to_json(row()) | {"index": True}), "rows:2.index is True"),
        (json.dumps(to_json(row()) | {"arrivals_s": 1}), "a list is needed"),
        (json.dumps(to_json(row()) | {"server": 1}), "rows:2.server is 1; an object"),
    ],
)
def test_a_wrong_line_is_told_with_its_number(tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "rows").write_text(f"{json.dumps(to_json(row()))}\n{line}\n")
    with pytest.raises(InvalidRequestError) as raised:
        read_rows(tmp_path / "rows", RequestRow)
    assert told in str(raised.value)


def test_what_a_newer_version_adds_is_passed_over() -> None:
    assert from_json(RequestRow, to_json(row()) | {"later": 1}, "row") == row()


def test_latencies_count_from_the_intended_send() -> None:
    late = row(first_token_s=2.0, completion_tokens=5, arrivals_s=(2.0, 3.0, 3.5))
    assert (late.ttft_s, late.e2el_s, late.schedule_lag_s) == (1.0, 3.0, 0.5)
    assert late.tpot_s == 0.5
    assert late.itls_s == (1.0, 0.5)


def test_one_token_has_no_time_per_output_token() -> None:
    assert row(first_token_s=2.0, completion_tokens=1).tpot_s is None
    assert row().ttft_s is None


@pytest.mark.parametrize(
    ("cached", "outcome"), [(0, CacheOutcome.MISS), (49, CacheOutcome.PARTIAL), (50, CacheOutcome.HIT)]
)
def test_hits_and_misses_are_told_apart(cached: int, outcome: CacheOutcome) -> None:
    assert row(prompt_tokens=100, cached_tokens=cached).outcome == outcome
