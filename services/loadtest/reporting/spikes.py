"""Latency spikes, each with its cause as the request's own timings name it. Pure.

A spike is a first token, or a gap between two tokens, that took much longer than usual and is among the slowest of the
run. Its cause is what took most of the excess: the time of each part (the queue, computing, ...) less what that part
usually takes. What no timing explains is called unexplained, and not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from services.loadtest.records import RequestRow, ServerTimes

_FACTOR = 2.5
"""Of the usual time, from which on it is a spike."""
_LEAST_S = 0.02
"""Above the usual time, at least: less is noise."""
_SLOWEST = 0.05
"""Part of the requests that may be spikes."""
_SURELY_COMPUTED = 32
"""Uncached tokens from which on their number decides how long computing takes."""


class SpikeKind(StrEnum):
    """Where a request lost time."""

    FIRST_TOKEN = "first token"  # noqa: S105 - of an answer
    BETWEEN_TOKENS = "between tokens"


class Cause(StrEnum):
    """Why, in words for people."""

    CLIENT = "the client sent it late"
    ROUTER = "routing"
    QUEUE = "waiting in the worker's queue"
    PREEMPTED = "preempted: others had its blocks"
    RECOMPUTE = "computing again what a preemption had thrown away"
    SWAP = "loading blocks from a lower tier"
    RETRIED = "retried: its first worker was lost or full"
    DEGRADED = "degraded: less was reused, since index or control data were out of reach"
    LONG_PROMPT = "many prompt tokens that were not cached"
    COMPUTING = "computing beside other requests"
    UNEXPLAINED = "in none of its timings: network, or client or server short of CPU"


@dataclass(frozen=True, slots=True)
class Spike:
    """One request."""

    row: RequestRow
    kind: SpikeKind
    took_s: float
    usual_s: float
    cause: Cause
    excess_s: Mapping[Cause, float]
    """Above the usual, by cause, largest first."""


def spikes(rows: Sequence[RequestRow]) -> list[Spike]:
    """All of them, the worst first."""
    found = [row for row in rows if row.completed and row.ttft_s is not None]
    return sorted([*_first_tokens(found), *_gaps(found)], key=lambda spike: spike.usual_s - spike.took_s)


def _first_tokens(rows: Sequence[RequestRow]) -> list[Spike]:
    if not rows:
        return []
    times = [row.ttft_s or 0.0 for row in rows]
    usual_s, threshold_s = median(times), _threshold_s(times)
    usual = _Usual(rows)
    return [
        _spike(row, SpikeKind.FIRST_TOKEN, took_s, usual_s, usual.excess(row, took_s))
        for row, took_s in zip(rows, times, strict=True)
        if took_s >= threshold_s
    ]


def _gaps(rows: Sequence[RequestRow]) -> list[Spike]:
    with_gaps = [row for row in rows if row.itls_s]
    worst = [max(row.itls_s) for row in with_gaps]
    if not worst:
        return []
    usual_s = median(gap for row in with_gaps for gap in row.itls_s)
    threshold_s = max(_threshold_s(worst), _FACTOR * usual_s)
    return [
        _spike(row, SpikeKind.BETWEEN_TOKENS, gap_s, usual_s, _gap_excess(row, gap_s - usual_s))
        for row, gap_s in zip(with_gaps, worst, strict=True)
        if gap_s >= threshold_s
    ]


def _threshold_s(times: Sequence[float]) -> float:
    """From which on a time is a spike: none of them where nothing stands out."""
    ranked = sorted(times)
    slowest_s = ranked[min(len(ranked) - 1, int((1.0 - _SLOWEST) * len(ranked)))]
    usual_s = median(times)
    return max(slowest_s, _FACTOR * usual_s, usual_s + _LEAST_S)


def _spike(row: RequestRow, kind: SpikeKind, took_s: float, usual_s: float, excess: Mapping[Cause, float]) -> Spike:
    ranked = dict(sorted(((cause, s) for cause, s in excess.items() if s > 0), key=lambda each: -each[1]))
    return Spike(row, kind, took_s, usual_s, next(iter(ranked), Cause.UNEXPLAINED), ranked)


class _Usual:
    """What each part of a first token's time usually takes in this run."""

    def __init__(self, rows: Sequence[RequestRow]) -> None:
        parts = [_parts(row) for row in rows]
        self._parts = {
            cause: median(each[cause] for each in parts)
            for cause in (Cause.CLIENT, Cause.ROUTER, Cause.QUEUE, Cause.COMPUTING, Cause.UNEXPLAINED)
        }
        self._uncached = median(map(_uncached, rows))
        speeds = [
            each[Cause.COMPUTING] / _uncached(row)
            for row, each in zip(rows, parts, strict=True)
            if _uncached(row) >= _SURELY_COMPUTED
        ]
        self._token_s = median(speeds) if speeds else 0.0

    def excess(self, row: RequestRow, took_s: float) -> dict[Cause, float]:
        """Seconds above the usual, by cause; negative where a part was faster."""
        parts = _parts(row)
        found = {cause: seconds - self._parts.get(cause, 0.0) for cause, seconds in parts.items()}
        more_tokens = _uncached(row) - self._uncached
        by_tokens = min(max(0.0, found[Cause.COMPUTING]), more_tokens * self._token_s)
        if by_tokens > 0:
            found[Cause.COMPUTING] -= by_tokens
            found[Cause.DEGRADED if row.degraded else Cause.LONG_PROMPT] = by_tokens
        if row.attempts > 1:  # the timings are those of the worker that answered
            found[Cause.RETRIED] = found.pop(Cause.UNEXPLAINED)
        assert abs(sum(parts.values()) - took_s) < 1e-6, "the parts of a time are the whole of it"
        return found


def _parts(row: RequestRow) -> dict[Cause, float]:
    """Where the time to the first token went; all of it."""
    whole_s, late_s = row.ttft_s or 0.0, max(0.0, row.schedule_lag_s)
    if row.server is None:
        return {
            Cause.CLIENT: late_s,
            Cause.ROUTER: 0.0,
            Cause.QUEUE: 0.0,
            Cause.COMPUTING: whole_s - late_s,
            Cause.UNEXPLAINED: 0.0,
        }
    server = row.server
    loading_s = min(server.swap_s, server.queue_s)  # of what it found at admission: before its first step
    stood = _within(server.prefill_s, server, server.swap_s - loading_s)
    computing_s = server.prefill_s - sum(stood.values())
    stood[Cause.SWAP] += loading_s
    rest_s = whole_s - late_s - server.route_s - server.queue_s - server.prefill_s
    return {
        Cause.CLIENT: late_s,
        Cause.ROUTER: server.route_s,
        Cause.QUEUE: server.queue_s - loading_s,
        **stood,
        Cause.COMPUTING: computing_s,
        Cause.UNEXPLAINED: rest_s,
    }


def _within(span_s: float, server: ServerTimes, swap_s: float) -> dict[Cause, float]:
    """What a span lost to a lack of blocks. The server tells sums over the whole request; no part exceeds the span."""
    found = {}
    told = ((Cause.PREEMPTED, server.preempted_s), (Cause.RECOMPUTE, server.recompute_s), (Cause.SWAP, swap_s))
    for cause, seconds in told:
        found[cause] = min(seconds, span_s)
        span_s -= found[cause]
    return found


def _gap_excess(row: RequestRow, excess_s: float) -> dict[Cause, float]:
    if row.server is None:
        return {Cause.UNEXPLAINED: excess_s}
    stood = _within(excess_s, row.server, row.server.swap_s)
    left_s = excess_s - sum(stood.values())
    at_client_s = row.end_s - (row.first_token_s or row.end_s)
    on_the_way_s = min(left_s, max(0.0, at_client_s - row.server.decode_s))
    away = Cause.RETRIED if row.attempts > 1 else Cause.UNEXPLAINED
    return {**stood, away: on_the_way_s, Cause.COMPUTING: left_s - on_the_way_s}


def _uncached(row: RequestRow) -> int:
    return row.prompt_tokens - row.cached_tokens
