"""What a chart is made of: lines, areas, dots and words on a sheet. Values; `svg.py` and `png.py` draw them.

Positions are in the sheet's units, from its upper left corner. Colours go by what they stand for, so that a chart can
be drawn light and dark.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

Point: TypeAlias = tuple[float, float]


class Tone(StrEnum):
    """What a colour stands for."""

    INK = "ink"
    MUTED = "muted"
    GRID = "grid"
    HIT = "hit"
    PARTIAL = "partial"
    MISS = "miss"
    SERIES_0 = "c0"
    SERIES_1 = "c1"
    SERIES_2 = "c2"
    SERIES_3 = "c3"
    SERIES_4 = "c4"
    SERIES_5 = "c5"
    SERIES_6 = "c6"
    SERIES_7 = "c7"


SERIES = tuple(tone for tone in Tone if tone.name.startswith("SERIES"))
"""For tenants and other things without an order of their own."""


class Anchor(StrEnum):
    """Which end of a text stands at its position."""

    START = "start"
    MIDDLE = "middle"
    END = "end"


@dataclass(frozen=True, slots=True)
class Line:
    """Through points, in order."""

    points: tuple[Point, ...]
    tone: Tone
    width: float = 2.0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Area:
    """The inside of a polygon."""

    points: tuple[Point, ...]
    tone: Tone
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Dot:
    """A circle; `title` is shown where the pointer rests on it."""

    at: Point
    tone: Tone
    radius: float = 2.6
    opacity: float = 1.0
    title: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text; `at` is on its baseline."""

    at: Point
    text: str
    tone: Tone = Tone.MUTED
    anchor: Anchor = Anchor.START
    size: float = 12.0
    upright: bool = True
    """False: turned to be read from below."""


Mark = Line | Area | Dot | Text


@dataclass(frozen=True, slots=True)
class Sheet:
    """A chart."""

    name: str
    """Of its file, without an ending."""
    title: str
    description: str
    """What is seen on it, for those who do not see it."""
    width: float
    height: float
    marks: tuple[Mark, ...]
