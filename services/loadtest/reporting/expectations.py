"""What a run was expected to reach, and what of it was missed and by how much. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cache_store.errors import InvalidRequestError
from services.loadtest.records import RequestRow

_HIT_RATE = "hit rate"
_HELP = (
    "write METRIC:PERCENTILE:MS, such as ttft:p99:500; metrics are ttft, tpot, itl and e2el, a percentile may be mean"
)


@dataclass(frozen=True, slots=True)
class Slo:
    """A bound of one latency."""

    metric: str
    percentile: float | None
    """None: the mean."""
    limit_ms: float

    @property
    def text(self) -> str:
        """As it was written."""
        return f"{self.metric}:{self.statistic}:{self.limit_ms:g}"

    @property
    def statistic(self) -> str:
        """`p99`, or `mean`."""
        return "mean" if self.percentile is None else f"p{self.percentile:g}"


@dataclass(frozen=True, slots=True)
class Expectations:
    """Of a run."""

    hit_rate: float | None
    """Least part of the prompt tokens that is cached."""
    slos: tuple[Slo, ...]


_VALUES: Mapping[str, Callable[[RequestRow], Sequence[float]]] = {
    "ttft": lambda row: () if row.ttft_s is None else (row.ttft_s,),
    "tpot": lambda row: () if row.tpot_s is None else (row.tpot_s,),
    "itl": lambda row: row.itls_s,
    "e2el": lambda row: (row.e2el_s,),
}


def parse_slo(text: str) -> Slo:
    """Raises InvalidRequestError that says how to write one."""
    parts = text.split(":")
    if len(parts) != 3 or parts[0] not in _VALUES:
        raise InvalidRequestError("slo", f"{text!r} is no service level: {_HELP}")
    percentile = None if parts[1] == "mean" else _number(text, parts[1].removeprefix("p"))
    if percentile is not None and not 0 < percentile < 100:
        raise InvalidRequestError("slo", f"{text!r}: percentiles lie between 0 and 100; {_HELP}")
    limit_ms = _number(text, parts[2])
    if limit_ms <= 0:
        raise InvalidRequestError("slo", f"{text!r}: the bound is above 0 milliseconds; {_HELP}")
    return Slo(parts[0], percentile, limit_ms)


def parse_share(text: str) -> float:
    """`0.6` or `60%`. Raises InvalidRequestError."""
    value = _number(text, text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    if not 0 <= value <= 1:
        raise InvalidRequestError("expect-hit-rate", f"{text!r} is no part of a whole; write 0.6 or 60%")
    return value


def missed(expected: Expectations, rows: Sequence[RequestRow]) -> list[str]:
    """A sentence for each that was missed, which says by how much; what was not measured is missed too."""
    done = [row for row in rows if row.completed]
    found = [_missed_hit_rate(expected.hit_rate, done)] if expected.hit_rate is not None else []
    found += [_missed_slo(each, done) for each in expected.slos]
    return [each for each in found if each]


def _missed_hit_rate(least: float, rows: Sequence[RequestRow]) -> str:
    prompt = sum(row.prompt_tokens for row in rows)
    if not prompt:
        return f"the {_HIT_RATE} was not measured: no request came to its end; {least:.1%} was expected"
    rate = sum(row.cached_tokens for row in rows) / prompt
    if rate >= least:
        return ""
    return f"the {_HIT_RATE} is {rate:.1%}, {(least - rate) * 100:.1f} points below the {least:.1%} that was expected"


def _missed_slo(slo: Slo, rows: Sequence[RequestRow]) -> str:
    values = [each for row in rows for each in _VALUES[slo.metric](row)]
    if not values:
        return f"{slo.metric} {slo.statistic} was not measured; --slo {slo.text} bounds it"
    found_ms = 1e3 * float(np.mean(values) if slo.percentile is None else np.percentile(values, slo.percentile))
    if found_ms <= slo.limit_ms:
        return ""
    above = found_ms - slo.limit_ms
    return (
        f"{slo.metric} {slo.statistic} is {found_ms:,.1f} ms, {above:,.1f} ms ({above / slo.limit_ms:.0%}) above "
        f"the bound of --slo {slo.text}"
    )


def _number(whole: str, part: str) -> float:
    try:
        value = float(part)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidRequestError("slo", f"{whole!r}: {part!r} is no number")
    return value
