"""The live view: a head, four lines of how it went, workers, tenants. Owned by Textual's event loop.

Asks for a picture on a thread of its own, so that keys are answered while a router does not.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import ClassVar, Protocol

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.markup import escape
from textual.widgets import DataTable, Footer, Input, Static

from services.client import ApiError
from services.console.cluster_view import ClusterView
from services.top.help import HelpScreen
from services.top.rows import (
    TENANT_HEADINGS,
    TENANT_SORTS,
    WORKER_HEADINGS,
    WORKER_SORTS,
    Choice,
    hit_text,
    tenant_rows,
    worker_rows,
)
from services.top.text import per_s, safe, spark

TREND_WIDTH = 60
_TRENDS = ("hits", "running", "waiting", "evicted")


class Source(Protocol):
    """Where pictures come from."""

    def take(self) -> ClusterView:
        """The newest; blocks. Raises ApiError."""
        ...


class TopApp(App[None]):
    """`stemcache top`."""

    TITLE = "stemcache top"
    CSS_PATH = "top.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort_tenants", "sort tenants"),
        Binding("S", "sort_workers", "sort workers", key_display="S"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter_tenants", "tenants", key_display="/"),
        Binding("w", "filter_workers", "workers"),
        Binding("escape", "clear", "clear", show=False),
        Binding("p", "pause", "pause"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, source: Source, interval_s: float) -> None:
        super().__init__()
        self._source = source
        self._interval_s = interval_s
        self.view: ClusterView | None = None
        """What is shown."""
        self.failure = ""
        """Why there is no newer one."""
        self.tenant_choice = Choice()
        self.worker_choice = Choice()
        self.is_paused = False
        self._filters_workers = False
        self._statics = {name: Static(id=name) for name in ("head", "marks")}
        self._trends = {name: Static(id=name, classes="trend") for name in _TRENDS}
        self._tables: dict[str, DataTable[Text]] = {
            name: DataTable(id=name, cursor_type="none") for name in ("workers", "tenants")
        }
        self._filter = Input(id="filter", placeholder="part of a name; Enter keeps, Esc clears", select_on_focus=False)

    def compose(self) -> ComposeResult:
        """The screen, from top to bottom."""
        yield from self._statics.values()
        with Horizontal(id="trends"):
            yield from self._trends.values()
        with VerticalScroll(id="tables"):
            yield from self._tables.values()
        yield self._filter
        yield Footer()

    def on_mount(self) -> None:
        """Begins to look."""
        self._tables["workers"].add_columns(*WORKER_HEADINGS)
        self._tables["tenants"].add_columns(*TENANT_HEADINGS)
        self._filter.display = False
        self._statics["marks"].display = False
        self._statics["head"].update("asking the router …")
        self.set_focus(None)
        self.run_worker(self._look(), exclusive=True)

    async def _look(self) -> None:
        while True:
            try:
                view = await asyncio.to_thread(self._source.take)
            except ApiError as error:
                self.failure = f"the router does not answer: {safe(str(error), 120)}"
            else:
                self.failure = ""
                self.view = self.view if self.is_paused and self.view else view
            self.redraw()
            await asyncio.sleep(self._interval_s)

    def redraw(self) -> None:
        """Shows what is known now."""
        view = self.view
        marks = [*([self.failure] if self.failure else []), *(safe(mark, 160) for mark in (view.marks if view else ()))]
        self._statics["marks"].display = bool(marks)
        self._statics["marks"].update(Text("\n".join(f"▲ {mark}" for mark in marks)))
        if view is None:
            return
        self._statics["head"].update(self._head(view))
        self._draw_trends(view)
        workers, tenants = self.worker_choice, self.tenant_choice
        for name, what, rows in (
            ("workers", workers.title("workers", WORKER_SORTS), worker_rows(view, workers)),
            ("tenants", tenants.title("tenants", TENANT_SORTS), tenant_rows(view, tenants)),
        ):
            table = self._tables[name]
            table.border_title = escape(what)
            table.clear()
            table.add_rows(rows)

    def _head(self, view: ClusterView) -> Text:
        head = Text.assemble(("stemcache ", "bold"), (safe(view.version), "bold"), "   ")
        head.append(
            f"{len(view.workers)} workers   {view.running_requests} running   {view.waiting_requests} waiting   "
        )
        head.append("hits ").append_text(hit_text(view.hit_rate))
        head.append(f" over {view.window_s:.0f} s" if view.window_s else " since the router's start", "dim")
        head.append(f"   {per_s(view.requests_per_s)} requests/s   {per_s(view.evicted_per_s)} evictions/s")
        return head.append("   PAUSED" if self.is_paused else "", "bold reverse")

    def _draw_trends(self, view: ClusterView) -> None:
        trends = view.trends
        for name, label, values, most in (
            ("hits", "hit rate", trends.hit_rates, 1.0),
            ("running", "running", trends.running, None),
            ("waiting", "waiting", trends.waiting, None),
            ("evicted", "evictions/s", trends.evicted_per_s, None),
        ):
            panel = self._trends[name]
            panel.border_title = label
            panel.update(Text(spark(values, max(8, panel.size.width or TREND_WIDTH), most)))

    def action_sort_tenants(self) -> None:
        """By the next column."""
        self.tenant_choice = self.tenant_choice.next_sort(len(TENANT_SORTS))
        self.redraw()

    def action_sort_workers(self) -> None:
        """By the next column."""
        self.worker_choice = self.worker_choice.next_sort(len(WORKER_SORTS))
        self.redraw()

    def action_reverse(self) -> None:
        """Both tables from the other end."""
        self.tenant_choice = replace(self.tenant_choice, backwards=not self.tenant_choice.backwards)
        self.worker_choice = replace(self.worker_choice, backwards=not self.worker_choice.backwards)
        self.redraw()

    def action_filter_tenants(self) -> None:
        """Asks for a part of a name."""
        self._ask(self.tenant_choice.filter)
        self._filters_workers = False

    def action_filter_workers(self) -> None:
        """Asks for a part of a name."""
        self._ask(self.worker_choice.filter)
        self._filters_workers = True

    def action_clear(self) -> None:
        """Shows everything."""
        self.tenant_choice, self.worker_choice = (
            replace(self.tenant_choice, filter=""),
            replace(self.worker_choice, filter=""),
        )
        self._end_asking()

    def action_pause(self) -> None:
        """Keeps this picture, or goes on."""
        self.is_paused = not self.is_paused
        self.redraw()

    def action_help(self) -> None:
        """What keys and colours mean."""
        self.push_screen(HelpScreen())

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters while one types."""
        if self._filters_workers:
            self.worker_choice = replace(self.worker_choice, filter=event.value)
        elif event.input.display:
            self.tenant_choice = replace(self.tenant_choice, filter=event.value)
        self.redraw()

    def on_input_submitted(self) -> None:
        """Keeps the filter."""
        self._end_asking()

    def _ask(self, value: str) -> None:
        with self._filter.prevent(Input.Changed):
            self._filter.value = value
        self._filter.display = True
        self._filter.focus()

    def _end_asking(self) -> None:
        self._filter.display = False
        self.set_focus(None)
        self.redraw()
