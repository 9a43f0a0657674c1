"""Charts of a sweep: what latency each throughput costs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from services.loadtest.reporting.marks import Sheet, Tone
from services.loadtest.reporting.plot import Axis, Entry, Plot
from services.loadtest.reporting.scales import from_zero, log_around
from services.loadtest.result import Result

_PERCENTILES = ((50.0, Tone.SERIES_0), (95.0, Tone.SERIES_2), (99.0, Tone.SERIES_1))
_NAMES = {"ttft": "time to first token", "tpot": "time per output token", "e2el": "end-to-end latency"}


def throughput_latency(results: Sequence[Result], metric: str) -> Sheet:
    """One latency over the throughput that was reached, a dot for each point in the order of the sweep."""
    told = [each for each in results if each.latencies[metric].count]
    latencies = [each.latencies[metric].p(percentile) for each in told for percentile, _ in _PERCENTILES]
    plot = Plot(
        Axis("requests per second that came to their end", from_zero(each.request_throughput for each in told)),
        Axis(f"{_NAMES[metric]}, ms (logarithmic)", log_around(latencies)),
    )
    for percentile, tone in _PERCENTILES:
        points = [(each.request_throughput, each.latencies[metric].p(percentile)) for each in told]
        plot.line(points, Entry(f"p{percentile:g}", tone))
        for (x, y), result in zip(points, told, strict=True):
            plot.dot((x, y), Entry("", tone), f"{_point(result)}: {x:.2f} requests/s, {y:,.1f} ms", 1.0, 3.5)
    description = f"Percentiles of the {_NAMES[metric]} over the throughput that each point of the sweep reached."
    return plot.sheet(f"throughput-{metric}", f"Throughput and {_NAMES[metric]}", description)


def _point(result: Result) -> str:
    if result.max_concurrency is not None:
        return f"{result.max_concurrency} callers"
    return f"{result.request_rate:g} requests/s sent"
