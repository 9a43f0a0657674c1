"""report.html: a page that needs nothing but itself. No script, nothing from outside, everything escaped. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.loadtest.reporting.html_text import text
from services.loadtest.reporting.marks import Sheet
from services.loadtest.reporting.style import style
from services.loadtest.reporting.svg import svg

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Also where something got past the escaping, it could neither run nor call anybody."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure at the top."""

    figure: str
    label: str


@dataclass(frozen=True, slots=True)
class Page:
    """What is on it."""

    title: str
    subtitle: str
    tiles: Sequence[Tile]
    warnings: Sequence[str]
    body: str
    """Of elements that are escaped."""
    footer: str


def page(content: Page) -> str:
    """The whole document."""
    tiles = "".join(
        f'<div class="tile"><b>{text(tile.figure)}</b><span>{text(tile.label)}</span></div>' for tile in content.tiles
    )
    warnings = "".join(f"<li>{text(each)}</li>" for each in content.warnings)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(content.title)}</title><style>{style()}</style></head><body><main>"
        f"<header><h1>{text(content.title)}</h1><p>{text(content.subtitle)}</p></header>"
        f'<div class="tiles">{tiles}</div>'
        + (f'<ul class="warn">{warnings}</ul>' if warnings else "")
        + f"{content.body}<footer>{text(content.footer)}</footer></main></body></html>\n"
    )


def charts(sheets: Sequence[Sheet]) -> str:
    """Cards, two beside each other where there is room."""
    cards = "".join(
        f'<figure class="card"><h3>{text(sheet.title)}</h3><p>{text(sheet.description)}</p>{svg(sheet)}</figure>'
        for sheet in sheets
    )
    return f'<div class="charts">{cards}</div>' if cards else ""
