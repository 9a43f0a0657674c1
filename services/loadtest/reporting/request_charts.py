"""Charts of requests: how soon first tokens came, by what was cached, by length and over time; and hit rates. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from services.loadtest.records import CacheOutcome, RequestRow
from services.loadtest.reporting.marks import SERIES, Point, Sheet, Tone
from services.loadtest.reporting.plot import Axis, Entry, Plot, short
from services.loadtest.reporting.scales import Linear, from_zero, log_around

MOST_DOTS = 2_500
"""Of a chart; of more requests every n-th is drawn, and the slowest."""
_MOST_STEPS = 300
_WINDOWS = 40
_MOST_TENANTS = len(SERIES)

OUTCOMES: Mapping[CacheOutcome, Entry] = {
    CacheOutcome.HIT: Entry("hit", Tone.HIT),
    CacheOutcome.PARTIAL: Entry("partial hit", Tone.PARTIAL),
    CacheOutcome.MISS: Entry("miss", Tone.MISS),
}


def answered(rows: Iterable[RequestRow]) -> list[RequestRow]:
    """Those that came to their end with a token."""
    return [row for row in rows if row.completed and row.ttft_s is not None]


def ttft_ms(row: RequestRow) -> float:
    """Of an answered one."""
    assert row.ttft_s is not None, "an answered request has a first token"
    return row.ttft_s * 1e3


def ttft_cdf(rows: Sequence[RequestRow]) -> Sheet:
    """What part of the requests had its first token within a time."""
    found = answered(rows)
    plot = Plot(
        Axis("time to first token, ms (logarithmic)", log_around(map(ttft_ms, found))),
        Axis("part of the requests", Linear(0.0, 1.0), lambda value: f"{value:.0%}"),
    )
    for outcome, entry in OUTCOMES.items():
        times = sorted(ttft_ms(row) for row in found if row.outcome is outcome)
        if times:
            label = f"{entry.label} {np.median(times):,.0f} ms ({len(times):,})"
            plot.line(steps(times), Entry(label, entry.tone))
    return plot.sheet(
        "ttft-cdf",
        "Time to first token",
        "Cumulative distributions, with medians and numbers of requests; further left is faster.",
    )


def steps(times: Sequence[float]) -> Iterable[Point]:
    """Of an empirical distribution, not more than can be seen."""
    count = len(times)
    ranks = np.unique(np.linspace(0, count - 1, min(count, _MOST_STEPS)).astype(int))
    yield times[0], 0.0
    for rank in ranks.tolist():
        yield times[rank], (rank + 1) / count


def ttft_by_length(rows: Sequence[RequestRow]) -> Sheet:
    """Each request by the length of its prompt and its time to first token."""
    found = answered(rows)
    plot = Plot(
        Axis("prompt, tokens", from_zero(float(row.prompt_tokens) for row in found)),
        Axis("time to first token, ms", from_zero(map(ttft_ms, found))),
    )
    for row in _thinned(found):
        title = f"{row.tenant}: {ttft_ms(row):,.1f} ms, {row.cached_tokens:,} of {row.prompt_tokens:,} tokens cached"
        plot.dot((float(row.prompt_tokens), ttft_ms(row)), OUTCOMES[row.outcome], title)
    description = "Each dot is a request. Misses grow with the length of the prompt, hits with what is not cached."
    return plot.sheet("ttft-by-length", "Time to first token by length of the prompt", description)


def ttft_over_time(rows: Sequence[RequestRow], spikes: Mapping[int, str]) -> Sheet:
    """Each request by when it was due; those in `spikes`, by index, are ringed, with their cause as title."""
    found = answered(rows)
    plot = Plot(
        Axis("due at, s", from_zero(row.intended_s for row in found)),
        Axis("time to first token, ms", from_zero(map(ttft_ms, found))),
    )
    for row in found:
        if row.index in spikes:
            plot.dot((row.intended_s, ttft_ms(row)), Entry("spike", Tone.INK), radius=5.0, opacity=0.9)
    for row in _thinned(found):
        title = f"{row.tenant}, request {row.index}: {ttft_ms(row):,.1f} ms {spikes.get(row.index, '')}".strip()
        plot.dot((row.intended_s, ttft_ms(row)), OUTCOMES[row.outcome], title, opacity=0.9)
    return plot.sheet("ttft-over-time", "Time to first token over time", "Each dot is a request; spikes are ringed.")


def hit_rate_over_time(rows: Sequence[RequestRow]) -> Sheet:
    """Cached tokens of prompt tokens, per tenant, in windows of the run."""
    found = answered(rows)
    end_s = max((row.intended_s for row in found), default=1.0)
    plot = Plot(
        Axis("due at, s", from_zero([end_s])),
        Axis("cached of prompt tokens", Linear(0.0, 1.0), lambda value: f"{value:.0%}"),
    )
    tenants = busiest(found)
    width_s = max(end_s / _windows(len(found), len(tenants)), 1e-9)
    for tenant, tone in zip(tenants, SERIES, strict=False):
        of_tenant = [row for row in found if row.tenant == tenant]
        plot.line(_rates(of_tenant, width_s), Entry(short(tenant), tone))
    left_out = len({row.tenant for row in found}) - len(tenants)
    note = f" {left_out} tenants with fewer requests are left out." if left_out else ""
    description = f"In windows of {width_s:.2g} s.{note}"
    return plot.sheet("hit-rate-over-time", "Hit rate over time, by tenant", description)


def busiest(rows: Sequence[RequestRow]) -> list[str]:
    """Tenants with most requests, as many as there are colours; by name."""
    names = sorted({row.tenant for row in rows})
    counts = {name: sum(row.tenant == name for row in rows) for name in names}
    return sorted(sorted(names, key=lambda name: -counts[name])[:_MOST_TENANTS])


def _windows(num_rows: int, num_tenants: int) -> int:
    """So many that each has a few requests of each tenant."""
    return max(1, min(_WINDOWS, num_rows // (4 * max(1, num_tenants))))


def _rates(rows: Sequence[RequestRow], width_s: float) -> Iterable[Point]:
    windows: dict[int, list[RequestRow]] = {}
    for row in rows:
        windows.setdefault(int(row.intended_s / width_s), []).append(row)
    for window in sorted(windows):
        prompt = sum(row.prompt_tokens for row in windows[window])
        middle_s = (window + 0.5) * width_s
        yield middle_s, sum(row.cached_tokens for row in windows[window]) / prompt if prompt else 0.0


def _thinned(rows: Sequence[RequestRow]) -> list[RequestRow]:
    if len(rows) <= MOST_DOTS:
        return list(rows)
    slowest = {row.index for row in sorted(rows, key=ttft_ms)[-MOST_DOTS // 10 :]}
    step = -(-len(rows) // MOST_DOTS)
    return [row for at, row in enumerate(rows) if at % step == 0 or row.index in slowest]
