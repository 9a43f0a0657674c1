"""The table, and its rows for the JSON."""

from __future__ import annotations

from dataclasses import asdict

from tests.bench.engine.measure import Measurement
from tests.bench.engine.rows import OURS, PEERS, Better, Goal, Row
from tests.bench.engine.sides import NOT_RUN
from tests.bench.figures import percentile

_SIGNS = {Better.LOWER: "≤", Better.HIGHER: "≥"}


def table(measurement: Measurement) -> str:
    """One line per row, then the spread of every figure."""
    lines = []
    for row in measurement.rows:
        lines.append(f"\n{row.measure} ({row.unit})")
        for side in (OURS, *(name for name in row.samples if name != OURS)):
            lines.append(f"  {side:14}{_spread(row.samples[side])}{_ratio(row, side)}")
        absent = [peer for peer in PEERS if _is_compared(row, peer) and peer not in row.samples]
        lines += [f"  {peer:14}{NOT_RUN:>10}" for peer in absent]
        lines += [f"  to reach {_goal(row, goal)}" for goal in row.goals]
    return "\n".join(lines)


def row_figures(row: Row) -> dict[str, object]:
    """Its samples by round, what it is held against, and medians over rounds of ours through each other side's."""
    goals = [asdict(goal) | {"reached": row.reached(goal), "holds": row.holds(goal)} for goal in row.goals]
    ratios = {side: row.ratio(side) for side in row.samples if side != OURS}
    return {"measure": row.measure, "unit": row.unit, "samples": row.samples, "ratios": ratios, "goals": goals}


def _is_compared(row: Row, peer: str) -> bool:
    return row.unit in ("ms", "tokens/s") and "contiguous" not in row.samples


def _spread(values: list[float]) -> str:
    digits = 3 if max(values) < 10 else 1
    parts = (f"p{round(100 * share)} {percentile(values, share):9.{digits}f}" for share in (0.5, 0.95, 0.99))
    return "   ".join(parts) if len(values) > 1 else f"    {values[0]:9.{digits}f}"


def _ratio(row: Row, side: str) -> str:
    ratio = None if side == OURS else row.ratio(side)
    return "" if ratio is None else f"   ours {ratio:.2f} ×"


def _goal(row: Row, goal: Goal) -> str:
    value, holds = row.reached(goal), row.holds(goal)
    unit = f" × {goal.note}" if goal.against else f" {row.unit}"
    found = NOT_RUN if value is None else f"{value:.2f}"
    verdict = {True: "reached", False: "not reached", None: "not compared"}[holds]
    return f"{_SIGNS[row.better]} {goal.limit:g}{unit}: {found}, {verdict}"
