"""Tables in Markdown, and how numbers look in them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MISSING = "–"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column is text, the others are numbers."""
    lines = [headings, ["---", *("---:" for _ in headings[1:])], *rows]
    for line in lines:
        assert len(line) == len(headings), f"a row of {len(line)} cells under {len(headings)} headings: {line}"
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def number(value: float | None, digits: int = 3) -> str:
    """At least so many digits, thousands apart; what was not measured is a dash."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    places = max(0, digits - len(str(int(abs(value))))) if abs(value) >= 1 else digits
    return f"{value:,.{places}f}"


def percent(share: float | None) -> str:
    """Of one, with one place."""
    return MISSING if share is None else f"{100 * share:.1f} %"


def verdict(value: float, limit: float, sign: str) -> str:
    """A figure beside what it should reach; `sign` is ≤ or ≥."""
    is_reached = value <= limit if sign == "≤" else value >= limit
    return f"{number(value)} ({sign} {limit:g}: {'reached' if is_reached else '**not reached**'})"
