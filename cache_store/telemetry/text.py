"""Families in Prometheus' text format, version 0.0.4. Pure.

Values of labels may be any text: what would end a label or a line is escaped, and a test has Prometheus' own parser
read back what came of hostile ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate

from cache_store.telemetry.families import Buckets, Family, Labels, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_IN_LABEL = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_IN_HELP = str.maketrans({"\\": "\\\\", "\n": "\\n"})


def render(families: Iterable[Family]) -> str:
    """The text of one scrape."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.text.translate(_IN_HELP)}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        if isinstance(sample, Sample):
            yield f"{family.name}{_labels(sample.labels)} {_number(sample.value)}"
        else:
            yield from _bucket_lines(family.name, sample)


def _bucket_lines(name: str, buckets: Buckets) -> Iterator[str]:
    sums = list(accumulate(buckets.counts))
    for bound, count in zip((*buckets.bounds, math.inf), sums, strict=True):
        yield f"{name}_bucket{_labels((*buckets.labels, ('le', _number(bound))))} {count}"
    yield f"{name}_count{_labels(buckets.labels)} {sums[-1]}"
    yield f"{name}_sum{_labels(buckets.labels)} {_number(buckets.total)}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_IN_LABEL)}"' for name, value in labels) + "}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(float(value))
