"""Tables of the engine's benchmark: a line per measure, a column per side."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.bench.engine.rows import OURS, PEERS
from tests.bench.machine import NOT_RUN
from tests.bench.page.markdown import MISSING, number, table
from tests.bench.page.results import Result

_LIMITS = {"roofline": "what reading the memory allows", "contiguous": "torch over contiguous keys"}


def engine(result: Result) -> str:
    """Medians over rounds, with the least and the most, and ours through theirs of the same rounds."""
    rows = result.figures["rows"]
    compared = [row for row in rows if any(peer in row["samples"] for peer in PEERS)]
    alone = [row for row in rows if row not in compared]
    parts = list(_compared(compared, result)) if compared else []
    if alone:
        parts.append(table(("", OURS, "beside", "to reach"), [_alone(row) for row in alone]))
    return "\n\n".join(parts)


def repeats(result: Result) -> str:
    """For the conditions."""
    return f"{result.settings['repeats']} rounds, all sides in each, {result.settings['threads']} threads each"


def _compared(rows: Sequence[Mapping[str, Any]], result: Result) -> Iterator[str]:
    yield table(
        ("", OURS, *(f"{peer} {_version(result, peer)}" for peer in PEERS), "to reach"),
        [
            (f"{row['measure']}, {row['unit']}", _cell(row, OURS), *(_cell(row, peer) for peer in PEERS), _goals(row))
            for row in rows
        ],
    )
    yield "In brackets the least and the most of all rounds; × is the median of ours through theirs, round by round."


def _version(result: Result, peer: str) -> str:
    return NOT_RUN if peer in result.absent_peers else result.peers[peer]


def _cell(row: Mapping[str, Any], side: str) -> str:
    samples = row["samples"].get(side)
    if not samples:
        return NOT_RUN
    told = f"{number(statistics.median(samples))} [{number(min(samples))}–{number(max(samples))}]"
    ratio = row["ratios"].get(side)
    return told if ratio is None else f"{told}, × {ratio:.2f}"


def _alone(row: Mapping[str, Any]) -> tuple[str, ...]:
    beside = [f"{_LIMITS.get(side, side)}: {_cell(row, side)}" for side in row["samples"] if side != OURS]
    return (f"{row['measure']}, {row['unit']}", _cell(row, OURS), "; ".join(beside) or MISSING, _goals(row))


def _goals(row: Mapping[str, Any]) -> str:
    told = []
    for goal in row["goals"]:
        sign = "≤" if _is_lower(row) else "≥"
        against = f" × {goal['note']}" if goal["against"] else f" {row['unit']}"
        if goal["reached"] is None:
            told.append(f"{sign} {goal['limit']:g}{against}: not compared")
            continue
        word = "reached" if goal["holds"] else "**not reached**"
        told.append(f"{sign} {goal['limit']:g}{against}: {goal['reached']:.2f}, {word}")
    return "; ".join(told) or MISSING


def _is_lower(row: Mapping[str, Any]) -> bool:
    return str(row["unit"]) != "tokens/s"
