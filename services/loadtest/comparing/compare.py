"""Two runs metric by metric. Pure but for reading their folders; the same folders give the same figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from cache_store.errors import PreconditionError
from services.loadtest.comparing.bootstrap import Change, Rows, Statistic, change
from services.loadtest.comparing.comparability import Difference, check_comparable, differences
from services.loadtest.records import CacheOutcome, RequestRow
from services.loadtest.results_folder import CONDITIONS, REQUESTS, RESULT, SWEEP, Run, read_run

_SEED = 20_260_301
_WINDOWS = 30


class Better(StrEnum):
    """Which way a figure should go."""

    LOWER = "lower"
    HIGHER = "higher"


class Finding(StrEnum):
    """What a change says."""

    BETTER = "better"
    WORSE = "worse"
    UNSURE = "no difference shown"
    UNKNOWN = "not measured in both"
    NOUGHT = "nothing in A to compare with"


@dataclass(frozen=True, slots=True)
class Delta:
    """One metric."""

    name: str
    unit: str
    change: Change | None
    finding: Finding


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of two runs."""

    first: str
    second: str
    deltas: tuple[Delta, ...]
    differences: tuple[Difference, ...]
    """Of their conditions."""


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    unit: str
    better: Better
    rows: Callable[[Run], Rows]
    statistic: Statistic


def compare(first: Path, second: Path) -> Comparison:
    """Raises PreconditionError where the folders may not be compared, InvalidRequestError where they are damaged."""
    runs = (_run(first), _run(second))
    check_comparable(runs[0].conditions, runs[1].conditions)
    rng = np.random.default_rng(_SEED)
    deltas = tuple(_delta(metric, *runs, rng) for metric in _metrics())
    return Comparison(str(first), str(second), deltas, tuple(differences(runs[0].conditions, runs[1].conditions)))


def _run(folder: Path) -> Run:
    if (folder / SWEEP).exists():
        raise PreconditionError(f"{folder} is a sweep; compare its points one by one, such as {folder}/rate-1")
    for name in (RESULT, CONDITIONS, REQUESTS):
        if not (folder / name).exists():
            raise PreconditionError(
                f"{folder} has no {name}; compare folders as `stemcache loadtest run` has written them"
            )
    return read_run(folder)


def _delta(metric: _Metric, first: Run, second: Run, rng: np.random.Generator) -> Delta:
    rows = (metric.rows(first), metric.rows(second))
    found = change(*rows, metric.statistic, rng)
    if found is None:
        finding = Finding.NOUGHT if all(each.shape[-1] for each in rows) else Finding.UNKNOWN
    elif not found.is_sure:
        finding = Finding.UNSURE
    else:
        finding = Finding.BETTER if (found.ratio < 0) == (metric.better is Better.LOWER) else Finding.WORSE
    return Delta(metric.name, metric.unit, found, finding)


def _metrics() -> list[_Metric]:
    latencies: list[tuple[str, Callable[[RequestRow], float | None], tuple[float, ...]]] = [
        ("time to first token", lambda row: row.ttft_s, (50, 95, 99)),
        ("time to first token, hits", lambda row: row.ttft_s if row.outcome is CacheOutcome.HIT else None, (50, 99)),
        ("time to first token, misses", lambda row: row.ttft_s if row.outcome is CacheOutcome.MISS else None, (50, 99)),
        ("time per output token", lambda row: row.tpot_s, (50, 95, 99)),
        ("longest gap between tokens", lambda row: max(row.itls_s, default=None), (50, 99)),
        ("end to end", lambda row: row.e2el_s, (50, 95, 99)),
    ]
    found = [
        _Metric(f"{name}, p{percentile:g}", "ms", Better.LOWER, _values(value), _percentile(percentile))
        for name, value, percentiles in latencies
        for percentile in percentiles
    ]
    return [
        *found,
        _Metric("hit rate", "", Better.HIGHER, _tokens, _part),
        _Metric("requests per second", "/s", Better.HIGHER, _per_window(lambda _: 1.0), _mean),
        _Metric(
            "output tokens per second",
            "/s",
            Better.HIGHER,
            _per_window(lambda row: float(row.completion_tokens)),
            _mean,
        ),
        _Metric("requests that came to their end", "", Better.HIGHER, _completed, _mean),
    ]


def _values(value: Callable[[RequestRow], float | None]) -> Callable[[Run], Rows]:
    """In milliseconds, in the order in which requests were due."""

    def rows(run: Run) -> Rows:
        found = (value(row) for row in run.requests if row.completed)
        return np.array([each * 1e3 for each in found if each is not None])

    return rows


def _tokens(run: Run) -> Rows:
    done = [row for row in run.requests if row.completed]
    return np.array([[row.cached_tokens for row in done], [row.prompt_tokens for row in done]], dtype=float)


def _completed(run: Run) -> Rows:
    return np.array([float(row.completed) for row in run.requests])


def _per_window(amount: Callable[[RequestRow], float]) -> Callable[[Run], Rows]:
    """What ended in each of equal windows of the run, per second."""

    def rows(run: Run) -> Rows:
        done: Sequence[RequestRow] = [row for row in run.requests if row.completed]
        if not done:
            return np.zeros(0)
        width_s = max(max(row.end_s for row in done) / _WINDOWS, 1e-9)
        windows = np.zeros(_WINDOWS)
        for row in done:
            windows[min(_WINDOWS - 1, int(row.end_s / width_s))] += amount(row) / width_s
        return windows

    return rows


def _percentile(percentile: float) -> Statistic:
    return lambda rows: np.asarray(np.percentile(rows, percentile, axis=-1))


def _part(rows: Rows) -> Rows:
    cached, prompt = rows.sum(axis=-1)
    return np.asarray(cached / np.maximum(prompt, 1.0))


def _mean(rows: Rows) -> Rows:
    return np.asarray(rows.mean(axis=-1))
