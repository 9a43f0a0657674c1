"""The live view under Textual's pilot: what stands on the screen, what keys do, and what names cannot."""

from __future__ import annotations

import grpc
import pytest
from textual.widgets import DataTable, Input, Static

from services.client import ApiUnavailableError
from services.client.errors import ErrorDetails
from services.console.cluster_view import ClusterView
from services.console.history import History
from services.top.app import TopApp
from services.top.help import HelpScreen
from services.top.plain import lines
from tests.support.pictures import EVIL, status, tenant, traffic, use, worker

SELDOM_S = 1_000.0
"""A picture at the start, and then no more."""

NO_DETAILS = ErrorDetails()


class Scripted:
    """Pictures one after the other; the last stays."""

    def __init__(self, *views: ClusterView) -> None:
        self.views = list(views)
        self.failure: ApiUnavailableError | None = None
        self.num_asked = 0

    def take(self) -> ClusterView:
        self.num_asked += 1
        if self.failure is not None:
            raise self.failure
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]


def picture(*names: str, marks: tuple[str, ...] = ()) -> ClusterView:
    """Two workers; each tenant has one block more than the one before."""
    uses = tuple(use(name, used_blocks=at + 1, guaranteed_blocks=2) for at, name in enumerate(names))
    workers = (worker("worker-0", uses, running_requests=3), worker("worker-1", running_requests=5))
    asked = tuple(traffic(name, 1, 100, 10 * (at + 1)) for at, name in enumerate(names))
    taken = status(*workers, traffic=asked, refused_workers=marks)
    return History().take(taken, [tenant(name) for name in names], 0.0, 0.0)


def first_column(app: TopApp, name: str) -> list[str]:
    """Names in a table, from top to bottom."""
    table = app.query_one(f"#{name}", DataTable)
    return [str(table.get_row_at(at)[0]) for at in range(table.row_count)]


def shown(app: TopApp, name: str) -> str:
    """What a part of the screen says."""
    return str(app.query_one(f"#{name}", Static).content)


@pytest.mark.parametrize("size", [(140, 40), (80, 24), (40, 12)])
async def test_tenants_and_workers_are_shown(size: tuple[int, int]) -> None:
    app = TopApp(Scripted(picture("acme", "globex")), 0.01)
    async with app.run_test(size=size) as pilot:
        while app.view is None:
            await pilot.pause(0.02)
        assert first_column(app, "tenants") == ["globex", "acme"]
        assert first_column(app, "workers") == ["worker-0", "worker-1"]
        assert "8 running" in shown(app, "head")
        assert "15 %" in shown(app, "head")
        assert not app.query_one("#marks").display


async def test_keys_sort_reverse_and_filter() -> None:
    app = TopApp(Scripted(picture("acme", "globex", "initech")), SELDOM_S)
    async with app.run_test(size=(140, 40)) as pilot:
        while app.view is None:
            await pilot.pause(0.02)
        await pilot.press("s")
        assert first_column(app, "tenants") == ["acme", "globex", "initech"]
        await pilot.press("r")
        assert first_column(app, "tenants") == ["initech", "globex", "acme"]
        assert "by name, reversed" in str(app.query_one("#tenants", DataTable).border_title)
        await pilot.press("S")
        assert first_column(app, "workers") == ["worker-1", "worker-0"]
        await pilot.press("slash", "I", "N", "I")
        assert first_column(app, "tenants") == ["initech"]
        await pilot.press("enter", "w", "0", "enter")
        assert first_column(app, "workers") == ["worker-0"]
        assert first_column(app, "tenants") == ["initech"]
        await pilot.press("escape")
        assert (len(first_column(app, "tenants")), len(first_column(app, "workers"))) == (3, 2)
        assert not app.query_one("#filter", Input).display


async def test_help_comes_and_goes_and_q_ends() -> None:
    app = TopApp(Scripted(picture("acme")), SELDOM_S)
    async with app.run_test() as pilot:
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        assert not isinstance(app.screen, HelpScreen)
        await pilot.press("q")
    assert app.return_code == 0


async def test_a_pause_keeps_the_picture() -> None:
    source = Scripted(picture("acme"))
    app = TopApp(source, 0.1)
    async with app.run_test() as pilot:
        while app.view is None:
            await pilot.pause(0.02)
        await pilot.press("p")
        source.views.append(picture("later"))
        before, asked = app.view, source.num_asked
        while source.num_asked < asked + 3:
            await pilot.pause(0.02)
        assert app.view is before
        assert "PAUSED" in shown(app, "head")
        await pilot.press("p")
        while first_column(app, "tenants") != ["later"]:
            await pilot.pause(0.02)


async def test_a_router_that_is_away_is_told_and_the_last_picture_stays() -> None:
    source = Scripted(picture("acme"))
    app = TopApp(source, 0.05)
    async with app.run_test(size=(140, 40)) as pilot:
        while app.view is None:
            await pilot.pause(0.02)
        source.failure = ApiUnavailableError(grpc.StatusCode.UNAVAILABLE, "nobody listens [bold]there[/]", NO_DETAILS)
        while not app.failure:
            await pilot.pause(0.02)
        assert "does not answer: nobody listens [bold]there[/]" in shown(app, "marks")
        assert first_column(app, "tenants") == ["acme"]
        source.failure = None
        while app.failure:
            await pilot.pause(0.02)
        assert not app.query_one("#marks").display


async def test_names_are_text_and_nothing_else() -> None:
    app = TopApp(Scripted(picture(EVIL, "acme", marks=(EVIL,))), SELDOM_S)
    async with app.run_test(size=(160, 40)) as pilot:
        while app.view is None:
            await pilot.pause(0.02)
        evil = next(name for name in first_column(app, "tenants") if name != "acme")
        assert evil.startswith("<img src=x onerror=alert(1)>[bold red]x")
        assert "[bold red]x[/]" in shown(app, "marks")
        await pilot.press("slash", *"[bold", "enter")
        assert first_column(app, "tenants") == [evil]
        screen = app.export_screenshot()
    assert "\x1b" not in screen
    assert "<img" not in screen


def test_plain_text_has_one_line_for_each_row() -> None:
    text = lines(picture(EVIL, "acme", marks=(EVIL,)))
    assert all(line.isprintable() for line in text)
    assert sum(line.startswith("acme ") for line in text) == 1
    assert any(line.startswith("! refused: <img") for line in text)
