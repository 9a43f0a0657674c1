"""Tables of what a service does around the engine: isolation, faults, telemetry, load, fetches, the pool's work."""

from __future__ import annotations

from tests.bench.page.markdown import MISSING, number, percent, table, verdict
from tests.bench.page.results import Result


def isolation(result: Result) -> str:
    """What one tenant could tell of another one's cache."""
    rows = []
    for each in result.figures["variants"]:
        own = [number(each.get(key), 4) for key in ("own_auc_by_time", "own_auc_by_tokens")]
        across = f"{number(each.get('across_auc'), 4)}, at most {number(each.get('across_bound'), 4)}"
        told = (each["variant"], f"{each['samples']:,}", f"{each['prompt_tokens']:,}")
        rows.append((*told, *own, across, str(each.get("leaked_tokens", 0)), each["outcome"]))
    headings = (
        "",
        "requests",
        "tokens of prompts",
        "own repeats, by time",
        "by tokens",
        "another tenant's",
        "tokens of others",
        "outcome",
    )
    limit = result.figures["limit"]
    told = (
        f"AUC: 1 where hits are always told from misses, 0.5 where never. The upper 95 % bound for another tenant has "
        f"to be below {limit:g}; a tenant's own repeats have to be told (0.95 or more). "
        f"{result.figures['model']}: **{result.figures['outcome']}** {result.figures.get('reason', '')}".strip()
    )
    return f"{table(headings, rows)}\n\n{told}"


def telemetry(result: Result) -> str:
    """On against off."""
    limit = result.figures["min_ratio"]
    rows = []
    for name, each in result.figures["processes"].items():
        cells = [
            f"{verdict(each[key][0], limit, '≥')} [{each[key][1]:.3f}–{each[key][2]:.3f}]" for key in ("cpu", "rate")
        ]
        rows.append((name, *cells, number(each["calls_per_s_off"])))
    return "\n\n".join(
        (
            table(("on against off", "calls per second of processor time", "calls per second", "calls/s, off"), rows),
            "Medians of all rounds; in brackets the middle half of them.",
        )
    )


def loadtest(result: Result) -> str:
    """The generator beside a bare client."""
    rows = []
    for name, each in result.figures.items():
        if name != "lag":
            share = verdict(each["share"], each["min_share"], "≥")
            rows.append((name, number(each["bare"], 1), number(each["ours"], 1), share))
    lag = result.figures["lag"]
    late = verdict(lag["p99_ms"], lag["max_p99_ms"], "≤")
    return (
        f"{table(('', 'bare grpc.aio client', 'load generator', 'share'), rows)}\n\n"
        f"By a schedule of {lag['rate']:,.0f} requests a second it sends late by {number(lag['p50_ms'])} ms (p50); "
        f"p99 in ms: {late}."
    )


def fetch(result: Result) -> str:
    """First tokens of prompts that another worker has."""
    rows = [
        (
            f"{row['tokens']:,} tokens, {number(row['size_mb'], 1)} MB",
            *(number(row[key]) for key in ("computed_s", "fetched_s", "warm_s")),
            f"{row['ratio']:.3f}",
        )
        for row in result.figures["rows"]
    ]
    return table(("", "computed, s", "fetched, s", "cached, s", "fetched / computed"), rows)


def pool(result: Result) -> str:
    """Microseconds of one prompt."""
    figures = result.figures
    rows = [
        (
            f"{row['case']}: {row['side']}",
            *(number(row[key]) for key in ("p50_us", "p95_us", "p99_us")),
            MISSING if row["blocks_per_s"] is None else f"{row['blocks_per_s'] / 1e6:.2f} M",
        )
        for row in figures["rows"]
    ]
    rows += [(f"{peer}: {why}", *[MISSING] * 4) for peer, why in result.absent_peers.items()]
    told = f"A prompt of {figures['num_blocks']} blocks; digests alone take {number(figures['hashing_us'])} µs of ours."
    return f"{table(('', 'p50, µs', 'p95', 'p99', 'blocks made per second'), rows)}\n\n{told}"


def chaos(result: Result) -> str:
    """What each fault hit and did."""
    rows = []
    for each in result.figures["outcomes"]:
        recovery = f"{each['recovery_s']:.1f} s" if each["recovered_when"] else MISSING
        counts = [f"{each[key]:,}" for key in ("failed_before_first", "broken_later", "wrong_tokens")]
        held = "yes" if each["held"] else "**no**"
        rows.append(
            (each["fault"], f"{each['sent']:,}", f"{each['in_phase']:,} {each['phase']}", *counts, recovery, held)
        )
    headings = (
        "fault",
        "sent",
        "in flight in the phase",
        "failed before",
        "broken",
        "wrong tokens",
        "recovery",
        "held",
    )
    held = sum(bool(each["held"]) for each in result.figures["outcomes"])
    return (
        f"{table(headings, rows)}\n\n{held} of {len(rows)} faults held what they claim ({percent(held / len(rows))})."
    )
