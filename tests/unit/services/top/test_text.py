"""Bars, lines and names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.console.cluster_view import TierPart
from services.top.text import BarCells, bar_cells, bar_text, per_s, percent, safe, spark
from tests.support.pictures import EVIL


@given(st.text(max_size=80))
def test_a_name_is_one_line_that_a_terminal_only_shows(name: str) -> None:
    shown = safe(name)
    assert shown.isprintable() or not shown
    assert len(shown) <= 40


def test_a_name_stays_what_it_is_otherwise() -> None:
    assert safe("acme-42 ütf") == "acme-42 ütf"
    assert "\x1b" not in safe(EVIL, 200)


def part(**numbers: int) -> TierPart:
    values = {"guaranteed_blocks": 0, "max_blocks": 0, "used_blocks": 0, "held_blocks": 0, "pinned_blocks": 0}
    return TierPart(tier="device", lent_blocks=numbers.pop("lent_blocks", 0), **(values | numbers))


def test_a_bar_tells_own_borrowed_lent_and_idle() -> None:
    own = part(guaranteed_blocks=50, used_blocks=20, lent_blocks=10)
    assert bar_cells(own, 100, 10) == BarCells(own=2, borrowed=0, lent=1, idle=2, free=5)
    borrower = part(guaranteed_blocks=20, used_blocks=60)
    assert bar_cells(borrower, 100, 10) == BarCells(own=2, borrowed=4, lent=0, idle=0, free=4)
    assert bar_text(bar_cells(borrower, 100, 10)) == "██▓▓▓▓····"


@given(*(st.integers(0, 200) for _ in range(3)), st.integers(0, 100), st.integers(1, 40))
def test_a_bar_is_as_wide_as_it_is(guaranteed: int, used: int, lent: int, total: int, width: int) -> None:
    cells = bar_cells(part(guaranteed_blocks=guaranteed, used_blocks=used, lent_blocks=lent), total, width)
    assert len(bar_text(cells)) == width
    assert cells.own > 0 or min(guaranteed, used, total) == 0


@pytest.mark.parametrize(
    ("values", "line"),
    [((0.0, None, 1.0), "  ▁ █"), ((), "     "), ((1, 2, 3, 4, 5, 6, 7), "▄▅▆▇█"), ((0, 0), "   ▁▁")],
)
def test_a_line_shows_the_last_values(values: tuple[float | None, ...], line: str) -> None:
    assert spark(values, 5) == line


def test_a_line_may_have_a_top() -> None:
    assert spark((0.5, 1.0), 2, 1.0) == "▅█"
    assert spark((0.5,), 1) == "█"


def test_numbers_are_short() -> None:
    assert [percent(None), percent(0.0), percent(0.845)] == ["–", "0 %", "84 %"]
    assert [per_s(0), per_s(0.25), per_s(1234.5)] == ["0", "0.2", "1,234"]
