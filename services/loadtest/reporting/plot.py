"""The frame of a chart: axes, grid, labels, legend, and where a value lies within it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from services.loadtest.reporting.marks import Anchor, Area, Dot, Line, Mark, Point, Sheet, Text, Tone
from services.loadtest.reporting.scales import Scale, number_text

WIDTH, HEIGHT = 640.0, 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 18.0, 40.0, 48.0
_LETTER = 0.56
"""Of a letter's width to its size, about: the drawing decides."""
_LEGEND_SIZE = 12.0

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Axis:
    """One of both."""

    label: str
    scale: Scale
    text: Format = number_text


@dataclass(frozen=True, slots=True)
class Entry:
    """Of the legend."""

    label: str
    tone: Tone
    dashed: bool = False


@dataclass(slots=True)
class Plot:
    """Takes marks in the values of its axes; `sheet` makes the chart."""

    x: Axis
    y: Axis
    height: float = HEIGHT
    marks: list[Mark] = field(default_factory=list)
    legend: list[Entry] = field(default_factory=list)

    def at(self, x: float, y: float) -> Point:
        """Where values lie on the sheet; what lies beyond an axis is drawn at its end."""
        across, up = (min(1.0, max(0.0, part)) for part in (self.x.scale.part(x), self.y.scale.part(y)))
        return (
            round(_LEFT + across * (WIDTH - _LEFT - _RIGHT), 2),
            round(self.height - _BOTTOM - up * (self.height - _TOP - _BOTTOM), 2),
        )

    def line(self, points: Iterable[Point], entry: Entry, width: float = 2.0) -> None:
        """A line, and its place in the legend."""
        self.marks.append(Line(tuple(self.at(*each) for each in points), entry.tone, width, entry.dashed))
        self.name(entry)

    def band(self, lower: Sequence[Point], upper: Sequence[Point], entry: Entry) -> None:
        """What lies between two lines."""
        around = (*(self.at(*each) for each in upper), *(self.at(*each) for each in reversed(lower)))
        self.marks.append(Area(around, entry.tone, 0.75))
        self.name(entry)

    def dot(self, at: Point, entry: Entry, title: str = "", opacity: float = 0.7, radius: float = 2.6) -> None:
        """One value."""
        self.marks.append(Dot(self.at(*at), entry.tone, radius, opacity, title))
        self.name(entry)

    def name(self, entry: Entry) -> None:
        """Puts something into the legend, once."""
        if entry.label and entry not in self.legend:
            self.legend.append(entry)

    def sheet(self, name: str, title: str, description: str) -> Sheet:
        """The chart."""
        marks = (*self._grid(), *self.marks, *self._labels(), *self._legend())
        return Sheet(name, title, description, WIDTH, self.height, marks)

    def _grid(self) -> Iterable[Mark]:
        left, bottom = _LEFT, self.height - _BOTTOM
        right = WIDTH - _RIGHT
        for value in self.y.scale.ticks():
            height = self._up(value)
            yield Line(((left, height), (right, height)), Tone.GRID, 1.0)
            yield Text((left - 8, height + 4), self.y.text(value), anchor=Anchor.END)
        for value in self.x.scale.ticks():
            across = self._across(value)
            yield Line(((across, bottom), (across, bottom + 4)), Tone.MUTED, 1.0)
            yield Text((across, bottom + 18), self.x.text(value), anchor=Anchor.MIDDLE)
        yield Line(((left, bottom), (right, bottom)), Tone.MUTED, 1.0)

    def _up(self, value: float) -> float:
        return round(self.height - _BOTTOM - self.y.scale.part(value) * (self.height - _TOP - _BOTTOM), 2)

    def _across(self, value: float) -> float:
        return round(_LEFT + self.x.scale.part(value) * (WIDTH - _LEFT - _RIGHT), 2)

    def _labels(self) -> Iterable[Mark]:
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        yield Text((middle, self.height - 10), self.x.label, anchor=Anchor.MIDDLE)
        yield Text((16, (_TOP + self.height - _BOTTOM) / 2), self.y.label, anchor=Anchor.MIDDLE, upright=False)

    def _legend(self) -> Iterable[Mark]:
        across = _LEFT
        for entry in self.legend:
            yield Line(((across, 18), (across + 18, 18)), entry.tone, 3.0, entry.dashed)
            yield Text((across + 24, 22), entry.label, Tone.INK, size=_LEGEND_SIZE)
            across += 24 + _LETTER * _LEGEND_SIZE * len(entry.label) + 18


def short(label: str, most: int = 22) -> str:
    """A name that fits into a legend."""
    return label if len(label) <= most else f"{label[: most - 1]}…"
