"""What to purge as flags, and what came of it in words."""

from __future__ import annotations

import argparse

from services.cli.output import date_text, print_table
from services.client import BlocksByTier, Purged, PurgeEverything, PurgeModel, PurgePartition, PurgeScope
from services.client.admin_results import PurgeReceipt, WorkerPurge

_HEADINGS = ("WORKER", "INCARNATION", "STATE", "DEVICE", "HOST", "DISK", "IN USE")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that name a scope, one of them needed."""
    scopes = parser.add_mutually_exclusive_group(required=True)
    scopes.add_argument("--everything", action="store_true", help="all that the tenant has cached")
    scopes.add_argument("--partition", metavar="NAME", help="one partition, over all models; '': the common space")
    scopes.add_argument("--model", metavar="NAME", help="one model, over all partitions")


def scope_of(args: argparse.Namespace) -> PurgeScope:
    """The scope that the flags name."""
    if args.partition is not None:
        return PurgePartition(args.partition)
    return PurgeEverything() if args.model is None else PurgeModel(args.model)


def print_purged(purged: Purged) -> None:
    """What a tenant is told."""
    print(f"purged {_blocks_text(purged.purged_blocks)}; {purged.acknowledged_workers} workers have forgotten it")
    if purged.uncounted_workers:
        print(f"{purged.uncounted_workers} of them are in the middle of a step: what they had is not counted")
    if purged.pending_workers:
        print(f"{purged.pending_workers} workers did not answer: they forget it before they serve the tenant again")
    print(f"complete everywhere at {date_text(purged.complete_unix_s)} at the latest")


def print_receipt(receipt: PurgeReceipt) -> None:
    """What the operator is told, worker by worker."""
    print_table(_HEADINGS, [_row(each) for each in receipt.workers])
    for each in receipt.workers:
        if not each.acknowledged:
            print(f"{each.worker_id}: {each.error}; it comes up to the purge before it serves the tenant again")
    print(
        f"control generation {receipt.control_generation}, complete everywhere at "
        f"{date_text(receipt.complete_unix_s)} at the latest"
    )


def _row(worker: WorkerPurge) -> tuple[str, ...]:
    blocks = worker.purged_blocks
    counts = (blocks.device, blocks.host, blocks.disk, worker.held_blocks)
    state = "forgotten" if worker.acknowledged else "pending"
    is_counted = worker.acknowledged and not worker.counts_pending
    cells = [str(each) for each in counts] if is_counted else ["?"] * len(counts)
    return (worker.worker_id, worker.incarnation[:8], state, *cells)


def _blocks_text(blocks: BlocksByTier) -> str:
    return f"{blocks.total} blocks ({blocks.device} device, {blocks.host} host, {blocks.disk} disk)"
