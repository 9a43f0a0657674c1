"""`stemcache status`: the running system as its router sees it, with what running out of blocks has led to."""

from __future__ import annotations

import argparse
from dataclasses import fields

from services.cli.connection import add_admin_flags, admin_client
from services.cli.exit_codes import ExitCode
from services.cli.output import print_json, print_table
from services.client.admin_results import (
    AuditStatus,
    ClusterStatus,
    PressureStatus,
    TenantUse,
    TierStatus,
    WindowStatus,
    WorkerStatus,
)

_DEGRADED = {
    "control_data": "the control data is older than its bound: nothing is reused",
    "registry": "the registry is out of reach: workers are those that were known, with old reports",
    "renewals": "no worker renews its lease, which Redis may refuse them: those that were known and answer go on",
    "index": "the index is out of reach: routed by what was known of it",
    "limits": "what other routers use of tenants' limits is not known: this one keeps to its share",
}
_HEADINGS = ("WORKER", "MODEL", "RUNNING", "WAITING", "BLOCKS USED", "PREFILL TOK/S", "ADDRESS")
_PRESSURE = ("WORKER", "LENT BACK", "EVICTED", "STOPPED", "PREEMPTED", "PINS ENDED", "REFUSED", "DEMOTED")
"""In the order in which a worker resorts to them."""
_AUDITS = ("WORKER", "BLOCKS CHECKED", "MISMATCHES", "HITS SKIPPED")
_USE = ("TENANT", "GUARANTEED", "MAX", "USED", "HELD", "PINNED", "LENT", "EVICTED", "WAITING", "HOST", "DISK")
_TIERS = ("WORKER", "TIER", "BLOCKS USED", "WRITTEN", "READ BACK", "EVICTED", "NOT WORTH IT", "FAILED", "MS/BLOCK")
_PEERS = ("WORKER", "BLOCKS TAKEN", "GIVEN", "FETCHES", "FAILED", "NOT WORTH IT", "BLOCKS REFUSED")
_WINDOWS = ("WORKER", "WINDOW", "SLOTS USED", "CACHED")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "status",
        help="show the router and its workers",
        description="Shows the router and its workers, who has which blocks, and what running out of them has led to.",
    )
    add_admin_flags(parser)
    parser.add_argument("--json", action="store_true", help="print all fields as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the status. A system without workers, or a degraded one, ends with UNAVAILABLE."""
    with admin_client(args) as client:
        status = client.status()
    if args.json:
        print_json(status)
    else:
        _print(status)
    return ExitCode.OK if status.workers and not status.degraded else ExitCode.UNAVAILABLE


def _print(status: ClusterStatus) -> None:
    print(f"stemcache {status.version}: {'degraded: exact and isolated, but slower' if status.degraded else 'well'}")
    for reason in status.degraded_reasons:
        print(f"degraded: {_DEGRADED.get(reason, reason)}")
    print(
        f"control data: generation {status.control_generation}, {status.control_age_s:.1f} s old; "
        f"{status.running_requests} requests running, {status.planned_requests:,} since the start, "
        f"{status.degraded_requests:,} of them degraded"
    )
    copy = status.index_copy
    print(
        f"copy of the index: {copy.followed_workers} of {copy.known_workers} workers followed, {copy.digests:,} blocks "
        f"of {copy.domains:,} domains; lookups: {copy.copy_lookups:,} by the copy, {copy.script_lookups:,} by Redis, "
        f"{copy.failed_lookups:,} without an answer; {copy.resyncs:,} resyncs"
    )
    if status.console_url:
        print(f"console: {status.console_url}")
    shown = [("router", status.metrics_address), *((each.worker_id, each.metrics_address) for each in status.workers)]
    if any(address for _, address in shown):
        print("metrics: " + ", ".join(f"{name} {address}" for name, address in shown if address))
    for refused in status.refused_workers:
        print(f"refused: {refused}")
    if not status.workers:
        print("no worker is ready")
        return
    for worker in status.workers:
        if worker.audit.mismatches:
            print(
                f"ALARM: {worker.worker_id} has found {worker.audit.mismatches} cached blocks that are not what they "
                "should be, and put them out of use; its log tells when and whose: check its memory and disk"
            )
        if worker.draining:
            print(f"{worker.worker_id} takes no new requests and is about to leave")
        if worker.quota_generation < status.control_generation:
            print(f"{worker.worker_id} has the quotas of generation {worker.quota_generation} so far")
    print_table(_HEADINGS, [_row(each) for each in status.workers])
    print("\nwhen blocks ran out, since each worker's start:")
    print_table(_PRESSURE, [(each.worker_id, *_pressure_cells(each.pressure)) for each in status.workers])
    print("\naudits of what is cached, since each worker's start:")
    print_table(_AUDITS, [(each.worker_id, *_audit_cells(each.audit)) for each in status.workers])
    if any(each.peers.fetches or each.peers.served_blocks or each.peers.declined_fetches for each in status.workers):
        print("\nblocks taken from other workers and given to them, since each worker's start:")
        print_table(_PEERS, [_peer_row(each) for each in status.workers])
    tiers = [_tier_row(worker.worker_id, tier) for worker in status.workers for tier in worker.tiers]
    if tiers:
        print("\ntiers below the device:")
        print_table(_TIERS, tiers)
    windows = [_window_row(worker.worker_id, window) for worker in status.workers for window in worker.windows]
    if windows:
        print("\nslots of sliding layers:")
        print_table(_WINDOWS, windows)
    uses = tenant_totals(status)
    if uses:
        print("\nblocks of tenants, all workers together:")
        print_table(_USE, [_use_row(each) for each in uses])


def tenant_totals(status: ClusterStatus) -> list[TenantUse]:
    """The use of each tenant over all workers; those that use most first."""
    totals: dict[str, TenantUse] = {}
    for worker in status.workers:
        for use in worker.tenants:
            totals[use.tenant] = add_use(totals[use.tenant], use) if use.tenant in totals else use
    return sorted(totals.values(), key=lambda use: (-use.used_blocks, use.tenant))


def add_use(a: TenantUse, b: TenantUse) -> TenantUse:
    """Both together, under the name of the first."""
    return TenantUse(a.tenant, *(getattr(a, each.name) + getattr(b, each.name) for each in fields(TenantUse)[1:]))


def _pressure_cells(pressure: PressureStatus) -> tuple[str, ...]:
    return tuple(str(getattr(pressure, each.name)) for each in fields(PressureStatus))


def _audit_cells(audit: AuditStatus) -> tuple[str, ...]:
    return tuple(str(getattr(audit, each.name)) for each in fields(AuditStatus))


def _use_row(use: TenantUse) -> tuple[str, ...]:
    numbers = (use.guaranteed_blocks, use.max_blocks, use.used_blocks, use.held_blocks, use.pinned_blocks)
    more = (use.lent_blocks, use.evicted_blocks, use.waiting_requests, use.host_blocks, use.disk_blocks)
    return (use.tenant, *map(str, (*numbers, *more)))


def _tier_row(worker_id: str, tier: TierStatus) -> tuple[str, ...]:
    blocks = f"{tier.used_blocks}/{tier.total_blocks}"
    counts = (tier.stored_blocks, tier.loaded_blocks, tier.evicted_blocks, tier.dropped_blocks, tier.failed_blocks)
    speed = f"{tier.load_block_s * 1000:.2f}" if tier.load_block_s else "-"
    return (worker_id, tier.tier, blocks, *map(str, counts), speed)


def _peer_row(worker: WorkerStatus) -> tuple[str, ...]:
    peers = worker.peers
    moved = (peers.fetched_blocks, peers.served_blocks, peers.fetches, peers.failed_fetches)
    return (worker.worker_id, *map(str, (*moved, peers.declined_fetches, peers.refused_blocks)))


def _window_row(worker_id: str, window: WindowStatus) -> tuple[str, ...]:
    used = f"{window.used_slots}/{window.total_slots}"
    return (worker_id, f"{window.window} tokens", used, f"{window.cached_slots}/{window.max_cached_slots}")


def _row(worker: WorkerStatus) -> tuple[str, ...]:
    speed = f"{worker.prefill_tokens_per_s:.0f}" if worker.prefill_tokens_per_s else "-"
    blocks = f"{worker.used_blocks}/{worker.total_blocks}"
    running = f"{worker.running_requests}/{worker.max_num_sequences}"
    return (worker.worker_id, worker.model, running, str(worker.waiting_requests), blocks, speed, worker.address)
