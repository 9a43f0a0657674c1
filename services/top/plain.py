"""One picture as plain text: for pipes, logs and terminals that can do no more."""

from __future__ import annotations

from collections.abc import Sequence

from services.console.cluster_view import ClusterView, TenantView, WorkerView
from services.top.text import percent, safe

WORKERS = ("WORKER", "MODEL", "RUNNING", "WAITING", "BLOCKS", "PREFILL TOK/S", "EVICTED", "PREEMPTED", "MARKS")
TENANTS = ("TENANT", "TIER", "GUARANTEED", "MAX", "USED", "HELD", "PINNED", "LENT", "BORROWED", "HIT RATE", "WAITING")


def lines(view: ClusterView) -> list[str]:
    """All of it."""
    since = "since the router's start" if not view.window_s else f"over {view.window_s:.0f} s"
    head = (
        f"stemcache {safe(view.version)}: {view.running_requests} running, {view.waiting_requests} waiting; "
        f"hit rate {percent(view.hit_rate)} {since}"
    )
    marks = [f"! {safe(mark, 200)}" for mark in view.marks]
    more = [f"and {view.tenants_left_out} tenants more"] if view.tenants_left_out else []
    tenants = [row for tenant in view.tenants for row in _tenant(tenant)]
    return [
        head,
        *marks,
        "",
        *_table(WORKERS, [_worker(each) for each in view.workers]),
        "",
        *_table(TENANTS, tenants),
        *more,
    ]


def _worker(worker: WorkerView) -> tuple[str, ...]:
    return (
        safe(worker.worker_id),
        safe(worker.model),
        f"{worker.running_requests}/{worker.max_running}",
        str(worker.waiting_requests),
        ", ".join(f"{each.tier} {each.used_blocks}/{each.total_blocks}" for each in worker.tiers),
        f"{worker.prefill_tokens_per_s:.0f}" if worker.prefill_tokens_per_s else "–",
        str(worker.evicted_blocks),
        str(worker.preemptions),
        safe("; ".join(worker.marks), 200) or "–",
    )


def _tenant(tenant: TenantView) -> list[tuple[str, ...]]:
    """One line for each tier; what belongs to all of them stands in the first."""
    rows = []
    for at, part in enumerate(tenant.tiers):
        numbers = (part.guaranteed_blocks, part.max_blocks, part.used_blocks, part.held_blocks, part.pinned_blocks)
        lent = "–" if part.lent_blocks is None else str(part.lent_blocks)
        rest = ("", "") if at else (percent(tenant.hit_rate), str(tenant.waiting_requests))
        name = "" if at else safe(tenant.name)
        rows.append((name, part.tier, *map(str, numbers), lent, str(part.borrowed_blocks), *rest))
    return rows


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in (headings, *rows)) for column in range(len(headings))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (headings, *rows)
    ]
