"""What keys and colours mean."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

from services.top.rows import BORROWED, FREE, IDLE, LENT, OWN

_KEYS = (
    ("s  S", "sort tenants, workers by the next column"),
    ("r", "both tables from the other end"),
    ("/  w", "show tenants, workers with this in their name"),
    ("Esc", "show everything again"),
    ("p", "keep this picture"),
    ("q", "quit"),
)
_COLOURS = (
    ("█", OWN, "used within the guarantee"),
    ("█", BORROWED, "borrowed: used beyond it, goes first when its owner wants it"),
    ("▒", LENT, "lent: guaranteed, and used by others now"),
    ("░", IDLE, "guaranteed, and used by nobody"),
    ("·", FREE, "the rest of the tier"),
)


class HelpScreen(ModalScreen[None]):
    """Over the view; any of its keys ends it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "back")]

    def compose(self) -> ComposeResult:
        """One text."""
        text = Text()
        text.append("Keys\n", "bold")
        for key, what in _KEYS:
            text.append(f"  {key:<6}", "bold").append(f"{what}\n")
        text.append("\nA tenant's part of a tier\n", "bold")
        for sign, style, what in _COLOURS:
            text.append(f"  {sign * 4}  ", style).append(f"{what}\n")
        text.append("\nHit rate: part of the prompts' tokens that was reused; a gap where nobody asked.", "dim")
        yield Static(text, id="help")
