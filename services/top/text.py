"""Numbers as short text, lines and bars for a terminal, and names without what a terminal would obey. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.console.cluster_view import Rate, TierPart

_LEVELS = "▁▂▃▄▅▆▇█"
MAX_NAME = 40


def safe(name: str, max_length: int = MAX_NAME) -> str:
    """A name that others chose: nothing in it moves the cursor or changes a colour, and it is not too long."""
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in name[: max_length + 1])
    return shown if len(shown) <= max_length else f"{shown[: max_length - 1]}…"


def percent(rate: Rate) -> str:
    """84 %, or a dash where nothing was asked."""
    return "–" if rate is None else f"{rate * 100:.0f} %"


def per_s(number: float) -> str:
    """Short, 0 as such."""
    if number == 0:
        return "0"
    return f"{number:.1f}" if number < 100 else f"{number:,.0f}"


def spark(values: Sequence[float | None], width: int, most: float | None = None) -> str:
    """The last `width` values as a line of bars, a gap where there is none; `most` is the top, None: the largest."""
    shown = values[-width:]
    top = most or max((value for value in shown if value is not None), default=0.0)
    return "".join(" " if value is None else _level(value, top) for value in shown).rjust(width)


def _level(value: float, top: float) -> str:
    if top <= 0:
        return _LEVELS[0]
    return _LEVELS[min(len(_LEVELS) - 1, round(value / top * (len(_LEVELS) - 1)))]


@dataclass(frozen=True, slots=True)
class BarCells:
    """How many cells of a bar are of which kind, from left to right."""

    own: int
    """Used within the guarantee."""
    borrowed: int
    """Used beyond it."""
    lent: int
    """Guaranteed, and used by others now."""
    idle: int
    """Guaranteed, and nobody's."""
    free: int
    """The rest."""


def bar_cells(part: TierPart, total_blocks: int, width: int) -> BarCells:
    """A tenant's part of a tier of `total_blocks`. What is there shows, however little it is."""
    lent = part.lent_blocks or 0
    own = min(part.used_blocks, part.guaranteed_blocks)
    idle = max(0, part.guaranteed_blocks - own - lent)
    cells: list[int] = []
    for blocks in (own, part.borrowed_blocks, lent, idle):
        wanted = max(1, round(blocks / total_blocks * width)) if blocks and total_blocks else 0
        cells.append(min(wanted, width - sum(cells)))
    return BarCells(cells[0], cells[1], cells[2], cells[3], width - sum(cells))


_SIGNS = ("█", "▓", "▒", "░", "·")


def bar_text(cells: BarCells) -> str:
    """Without colours."""
    numbers = (cells.own, cells.borrowed, cells.lent, cells.idle, cells.free)
    return "".join(sign * number for sign, number in zip(_SIGNS, numbers, strict=True))
