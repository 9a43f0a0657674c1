"""The list of latency spikes on the page: how many of each cause, and the worst with where their time went. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from services.loadtest.reporting.html_text import ms, section, table, text
from services.loadtest.reporting.marks import Tone
from services.loadtest.reporting.spikes import Cause, Spike

MOST_LISTED = 50
_TONES: Mapping[Cause, Tone] = {
    Cause.CLIENT: Tone.SERIES_6,
    Cause.ROUTER: Tone.SERIES_4,
    Cause.QUEUE: Tone.SERIES_1,
    Cause.PREEMPTED: Tone.MISS,
    Cause.RECOMPUTE: Tone.SERIES_3,
    Cause.SWAP: Tone.SERIES_2,
    Cause.RETRIED: Tone.PARTIAL,
    Cause.DEGRADED: Tone.SERIES_5,
    Cause.LONG_PROMPT: Tone.SERIES_0,
    Cause.COMPUTING: Tone.HIT,
    Cause.UNEXPLAINED: Tone.SERIES_7,
}
_NOTE = """A spike took at least 2.5 times as long as usual and is among the slowest 5 % of the run. Its cause is the
part that took most of the excess, by the request's own timings. The bar shows where the excess went."""


def spike_section(found: Sequence[Spike], num_requests: int) -> str:
    """Nothing where no request was slow."""
    if not found:
        return section("Latency spikes", '<p class="note">None: no request took much longer than usual.</p>')
    counts = Counter((spike.cause, spike.kind) for spike in found)
    worst = {key: max(s.took_s for s in found if (s.cause, s.kind) == key) for key in counts}
    by_cause = [(cause, kind, f"{count:,}", ms(worst[cause, kind])) for (cause, kind), count in counts.most_common()]
    shown = found[:MOST_LISTED]
    left_out = f" The worst {MOST_LISTED} of {len(found):,} are listed." if len(found) > len(shown) else ""
    return section(
        "Latency spikes",
        table(("cause", "of the", "spikes", "worst, ms"), by_cause, numbers_from=2),
        _listed(shown),
        note=f"{_NOTE} {len(found):,} in {num_requests:,} requests.{left_out}",
    )


def _listed(found: Sequence[Spike]) -> str:
    headings = ("due, s", "tenant", "worker", "of the", "took, ms", "usual", "cached", "cause", "where the excess went")
    head = "".join(f'<th scope="col">{text(each)}</th>' for each in headings)
    body = "".join(map(_row, found))
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _row(spike: Spike) -> str:
    row = spike.row
    cells = (
        f"{row.intended_s:,.2f}",
        row.tenant,
        row.worker or "–",
        spike.kind,
        ms(spike.took_s),
        ms(spike.usual_s),
        f"{row.cached_tokens:,} of {row.prompt_tokens:,}",
        spike.cause,
    )
    body = "".join(f"<td>{text(each)}</td>" for each in cells)
    return f'<tr title="{text(f"request {row.index}")}">{body}<td>{_bar(spike)}</td></tr>'


def _bar(spike: Spike) -> str:
    whole_s = sum(spike.excess_s.values()) or 1.0
    parts = "".join(_part(cause, seconds, whole_s) for cause, seconds in spike.excess_s.items())
    return f'<div class="bar">{parts}</div>'


def _part(cause: Cause, seconds: float, whole_s: float) -> str:
    title = text(f"{cause}: {ms(seconds)} ms")
    return f'<i class="b-{_TONES[cause]}" style="width:{seconds / whole_s:.2%}" title="{title}"></i>'
