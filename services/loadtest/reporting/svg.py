"""Charts as SVG within a page, whose style sheet gives tones their colours. Everything that is text is escaped."""

from __future__ import annotations

from html import escape

from services.loadtest.reporting.marks import Area, Dot, Line, Mark, Point, Sheet, Text


def svg(sheet: Sheet) -> str:
    """An `<svg>` element as wide as its place."""
    body = "".join(map(_mark, sheet.marks))
    label = escape(f"{sheet.title}. {sheet.description}")
    return (
        f'<svg viewBox="0 0 {sheet.width:g} {sheet.height:g}" role="img" aria-label="{label}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def _mark(mark: Mark) -> str:
    if isinstance(mark, Line):
        dashes = ' stroke-dasharray="5 4"' if mark.dashed else ""
        return (
            f'<polyline class="s-{mark.tone}" fill="none" stroke-width="{mark.width:g}" stroke-linejoin="round"'
            f'{dashes} points="{_points(mark.points)}"/>'
        )
    if isinstance(mark, Area):
        return f'<polygon class="f-{mark.tone}" fill-opacity="{mark.opacity:g}" points="{_points(mark.points)}"/>'
    if isinstance(mark, Dot):
        title = f"<title>{escape(mark.title)}</title>" if mark.title else ""
        return (
            f'<circle class="f-{mark.tone}" fill-opacity="{mark.opacity:g}" r="{mark.radius:g}" '
            f'cx="{mark.at[0]:g}" cy="{mark.at[1]:g}">{title}</circle>'
        )
    return _text(mark)


def _text(mark: Text) -> str:
    x, y = mark.at
    turned = "" if mark.upright else f' transform="rotate(-90 {x:g} {y:g})"'
    return (
        f'<text class="f-{mark.tone}" x="{x:g}" y="{y:g}" font-size="{mark.size:g}" '
        f'text-anchor="{mark.anchor}"{turned}>{escape(mark.text)}</text>'
    )


def _points(points: tuple[Point, ...]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
