"""Rows of both tables, in the order and to the filter that was asked for, as styled text. Pure.

Everything that others named goes through `safe` and into `Text`, which reads no markup.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rich.text import Text

from services.console.cluster_view import ClusterView, Rate, TenantView, TierPart, WorkerView
from services.top.text import BarCells, bar_cells, per_s, percent, safe, spark

RowT = TypeVar("RowT")
BAR_WIDTH = 28
SPARK_WIDTH = 24

OWN, BORROWED, LENT, IDLE, FREE = "#3fb68b", "#e0a33b", "#c678dd", "#4a5a6a", "#2b333d"
_GOOD, _FAIR, _POOR, _DIM, _ALARM = "#3fb68b", "#e0a33b", "#e06c6c", "#7d8896", "bold #ff6b6b"


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """By what rows may be sorted; `key` puts first what is asked for most."""

    label: str
    key: Callable[[RowT], tuple[float, str]]


WORKER_SORTS: tuple[Column[WorkerView], ...] = (
    Column("name", lambda each: (0.0, each.worker_id)),
    Column("running", lambda each: (-each.running_requests, each.worker_id)),
    Column("waiting", lambda each: (-each.waiting_requests, each.worker_id)),
    Column("fullest", lambda each: (-each.tiers[0].used_blocks / max(1, each.tiers[0].total_blocks), each.worker_id)),
    Column("evictions", lambda each: (-each.evicted_per_s, each.worker_id)),
)
TENANT_SORTS: tuple[Column[TenantView], ...] = (
    Column("blocks", lambda each: (-sum(part.used_blocks for part in each.tiers), each.name)),
    Column("name", lambda each: (0.0, each.name)),
    Column("requests", lambda each: (-each.requests_per_s, each.name)),
    Column("worst hit rate", lambda each: (2.0 if each.hit_rate is None else each.hit_rate, each.name)),
    Column("waiting", lambda each: (-each.waiting_requests, each.name)),
    Column("lent", lambda each: (-(each.tiers[0].lent_blocks or 0), each.name)),
    Column("evictions", lambda each: (-each.evicted_per_s, each.name)),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a table is shown, and in which order."""

    sort: int = 0
    backwards: bool = False
    filter: str = ""
    """What a name has in it, without regard to case."""

    def next_sort(self, num_sorts: int) -> Choice:
        """By the next column."""
        return replace(self, sort=(self.sort + 1) % num_sorts, backwards=False)

    def order(
        self, rows: tuple[RowT, ...], columns: tuple[Column[RowT], ...], name: Callable[[RowT], str]
    ) -> list[RowT]:
        """Those that fit, in order."""
        fitting = [row for row in rows if self.filter.casefold() in name(row).casefold()]
        return sorted(fitting, key=columns[self.sort].key, reverse=self.backwards)

    def title(self, what: str, columns: tuple[Column[RowT], ...]) -> str:
        """What the table says of itself."""
        order = f"by {columns[self.sort].label}{', reversed' if self.backwards else ''}"
        return f"{what} {order}{f' · with {safe(self.filter)!r}' if self.filter else ''}"


WORKER_HEADINGS = ("worker", "model", "running", "waiting", "blocks", "", "tok/s", "evicted/s", "preempted", "marks")
TENANT_HEADINGS = (
    "tenant",
    "tier",
    "part of the tier",
    "used",
    "guarantee",
    "lent",
    "borrowed",
    "pinned",
    "hits",
    "",
    "req/s",
    "waits",
)


def worker_rows(view: ClusterView, choice: Choice) -> list[tuple[Text, ...]]:
    """One row for each tier of each worker."""
    return [
        row
        for worker in choice.order(view.workers, WORKER_SORTS, lambda each: each.worker_id)
        for row in _worker(worker)
    ]


def tenant_rows(view: ClusterView, choice: Choice) -> list[tuple[Text, ...]]:
    """One row for each tier of each tenant."""
    totals: dict[str, int] = {}
    for worker in view.workers:
        for tier in worker.tiers:
            totals[tier.tier] = totals.get(tier.tier, 0) + tier.total_blocks
    return [
        row
        for tenant in choice.order(view.tenants, TENANT_SORTS, lambda each: each.name)
        for row in _tenant(tenant, totals)
    ]


def bar(cells: BarCells) -> Text:
    """The bar in colours."""
    text = Text()
    for sign, number, style in (
        ("█", cells.own, OWN),
        ("█", cells.borrowed, BORROWED),
        ("▒", cells.lent, LENT),
        ("░", cells.idle, IDLE),
        ("·", cells.free, FREE),
    ):
        text.append(sign * number, style)
    return text


def hit_text(rate: Rate) -> Text:
    """Green where most is found."""
    if rate is None:
        return Text(percent(rate), _DIM)
    return Text(percent(rate), _GOOD if rate >= 0.5 else _FAIR if rate >= 0.2 else _POOR)


def _worker(worker: WorkerView) -> list[tuple[Text, ...]]:
    rows = []
    for at, tier in enumerate(worker.tiers):
        used = round(tier.used_blocks / tier.total_blocks * 16) if tier.total_blocks else 0
        fill = Text("█" * used, OWN).append("·" * (16 - used), FREE)
        blocks = Text(f"{tier.used_blocks:,}/{tier.total_blocks:,} {tier.tier}")
        if at:
            rows.append((Text(), Text(), Text(), Text(), blocks, fill, *(Text() for _ in range(4))))
            continue
        rows.append(
            (
                Text(safe(worker.worker_id), "bold"),
                Text(safe(worker.model, 24)),
                Text(f"{worker.running_requests}/{worker.max_running}"),
                _count(worker.waiting_requests, _FAIR),
                blocks,
                fill,
                Text(f"{worker.prefill_tokens_per_s:,.0f}" if worker.prefill_tokens_per_s else "–", _DIM),
                _rate_text(worker.evicted_per_s),
                _count(worker.preemptions, _FAIR),
                Text(safe("; ".join(worker.marks), 80), _ALARM),
            )
        )
    return rows


def _tenant(tenant: TenantView, totals: dict[str, int]) -> list[tuple[Text, ...]]:
    rows = []
    for at, part in enumerate(tenant.tiers):
        own = (Text(), Text(), Text(), Text()) if at else _tenant_cells(tenant)
        name = Text() if at else Text(safe(tenant.name), "bold")
        rows.append((name, Text(part.tier, _DIM), *_part_cells(part, totals.get(part.tier, 0)), *own))
    return rows


def _part_cells(part: TierPart, total_blocks: int) -> tuple[Text, ...]:
    return (
        bar(bar_cells(part, total_blocks, BAR_WIDTH)),
        Text(f"{part.used_blocks:,}"),
        Text(f"{part.guaranteed_blocks:,}", _DIM),
        Text("–", _DIM) if part.lent_blocks is None else _count(part.lent_blocks, LENT),
        _count(part.borrowed_blocks, BORROWED),
        _count(part.pinned_blocks, ""),
    )


def _tenant_cells(tenant: TenantView) -> tuple[Text, ...]:
    line = Text(spark(tenant.hit_rates, SPARK_WIDTH, 1.0), OWN)
    rate = Text(per_s(tenant.requests_per_s), "" if tenant.requests_per_s else _DIM)
    return (hit_text(tenant.hit_rate), line, rate, _count(tenant.waiting_requests, _FAIR))


def _count(number: int, style: str) -> Text:
    return Text(f"{number:,}", style if number else _DIM)


def _rate_text(number: float) -> Text:
    return Text(per_s(number), _FAIR if number else _DIM)
