"""The isolation test on the page: both tenants' times, and what they tell. Pure."""

from __future__ import annotations

import numpy as np

from services.loadtest.isolation.record import IsolationRecord, VariantRecord
from services.loadtest.isolation.samples import Kind
from services.loadtest.reporting.html_text import section, table
from services.loadtest.reporting.marks import Sheet, Tone
from services.loadtest.reporting.page import charts
from services.loadtest.reporting.plot import Axis, Entry, Plot
from services.loadtest.reporting.request_charts import steps
from services.loadtest.reporting.scales import Linear, log_around

_ENTRIES = {
    Kind.REPEAT: Entry("a tenant's own, repeated", Tone.HIT, dashed=True),
    Kind.FIRST: Entry("sent by nobody before", Tone.SERIES_1),
    Kind.CROSSED: Entry("cached by the other tenant", Tone.SERIES_3),
}


def isolation_sheets(record: IsolationRecord) -> list[Sheet]:
    """A chart per variant."""
    return [_times(at, variant) for at, variant in enumerate(record.variants) if all(variant.ttft_ms.values())]


def isolation_section(record: IsolationRecord) -> str:
    """Verdict, figures, charts."""
    rows = [
        (
            each.variant,
            each.outcome,
            f"{each.samples:,}",
            f"{each.prompt_tokens:,}",
            _auc(each.own_auc_by_time),
            _auc(each.own_auc_by_tokens),
            _auc(each.across_auc),
            f"{each.across_bound:.4f} < {record.limit:g}",
            f"{each.leaked_tokens:,}",
            each.reason,
        )
        for each in record.variants
    ]
    headings = (
        "variant", "outcome", "samples", "tokens each", "own, by time", "by tokens", "across, by time", "at most",
        "leaked tokens", "",
    )  # fmt: skip
    note = f"{str(record.outcome).capitalize()}. {record.reason} {record.power}".replace("  ", " ")
    return section("Isolation between tenants", table(headings, rows, 2), charts(isolation_sheets(record)), note=note)


def _times(at: int, variant: VariantRecord) -> Sheet:
    everything = [each for times in variant.ttft_ms.values() for each in times]
    plot = Plot(
        Axis("time to first token, ms (logarithmic)", log_around(everything)),
        Axis("part of the requests", Linear(0.0, 1.0), lambda value: f"{value:.0%}"),
    )
    for kind, entry in _ENTRIES.items():
        plot.line(steps(np.sort(variant.ttft_ms[kind]).tolist()), entry)
    description = (
        "Own repeats stand apart. First requests have to lie upon each other, whether the other tenant has cached "
        "the prompt or nobody has."
    )
    return plot.sheet(f"isolation-{at}", f"Isolation: {variant.variant}", description)


def _auc(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
