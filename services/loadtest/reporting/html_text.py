"""HTML out of text. All that is shown passes through here and is escaped: names and errors are other people's words."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def text(value: object) -> str:
    """As text of an element or value of an attribute."""
    return escape(str(value))


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], numbers_from: int = 1) -> str:
    """A table; columns from `numbers_from` on are aligned as numbers."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col"{_aligned(at, numbers_from)}>{text(each)}</th>' for at, each in enumerate(headings))
    body = "".join(f"<tr>{_cells(row, numbers_from)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(row: Sequence[object], numbers_from: int) -> str:
    return "".join(f"<td{_aligned(at, numbers_from)}>{text(each)}</td>" for at, each in enumerate(row))


def _aligned(at: int, numbers_from: int) -> str:
    return ' class="n"' if at >= numbers_from else ""


def section(title: str, *parts: str, note: str = "") -> str:
    """A part of the page; nothing where it has no content."""
    body = "".join(parts)
    if not body:
        return ""
    told = f'<p class="note">{text(note)}</p>' if note else ""
    return f"<section><h2>{text(title)}</h2>{told}{body}</section>"


def ms(value_s: float) -> str:
    """Seconds as milliseconds."""
    return f"{value_s * 1e3:,.1f}"


def share(value: float | None) -> str:
    """A part as percentage; a dash where there is none."""
    return "–" if value is None else f"{value:.1%}"
