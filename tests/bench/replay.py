"""What policies hit on the public traces: `python -m tests.bench.replay`, or `make bench-replay`.

`stemcache replay` in processes of its own: two traces, all policies and the optimum at several capacities, then with a
host pool. STEMCACHE_TRACES names the folder of the traces. A run hits the same wherever it is made; only the speed that
stands beside it is the machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bench.machine import ROOT, print_table
from tests.bench.record import Record

TRACES = {"conversation": "mooncake_conversation_trace.jsonl.zst", "agents": "kv_cache_tester_claude_code.jsonl.zst"}
CAPACITIES = ("1%", "2%", "5%", "10%", "20%")
TIER_CAPACITIES = ("5%",)
HOST_FACTOR = "4"


def main() -> None:
    arguments = _arguments()
    record = Record.begin()
    figures = {
        "device": {name: _replay(arguments, name, CAPACITIES, "--oracle") for name in arguments.loads},
        "host": {
            name: _replay(arguments, name, TIER_CAPACITIES, "--host-factor", HOST_FACTOR) for name in arguments.loads
        },
        "host_factor": int(HOST_FACTOR),
    }
    record.write(arguments, figures=figures)


def _replay(arguments: argparse.Namespace, load: str, capacities: tuple[str, ...], *options: str) -> list[Any]:
    """One trace in a process of its own; what it told, a report for each capacity and policy."""
    told = [word for capacity in capacities for word in ("--capacity", capacity)]
    told += [word for policy in arguments.policies for word in ("--policy", policy)]
    command = [sys.executable, "-m", "services.cli", "replay", str(arguments.traces / TRACES[load]), *told, *options]
    run = subprocess.run([*command, "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    reports: list[Any] = json.loads(run.stdout)
    for report in reports:
        del report["tenants"]  # one, which is all
    print(f"\n{load} {' '.join(options)}")
    print_table(
        ("policy", "capacity", "hit %", "blocks/s"),
        [
            (
                each["policy"],
                f"{each['capacity_share']:.2%}",
                f"{each['hit_rate']:.2%}",
                f"{each['references_per_s']:,.0f}",
            )
            for each in reports
        ],
    )
    sys.stdout.flush()
    return reports


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replay", description=__doc__)
    folder = os.environ.get("STEMCACHE_TRACES")
    names = lambda text: tuple(text.split(","))  # noqa: E731
    parser.add_argument("--traces", type=Path, default=Path(folder) if folder else None, help="their folder")
    parser.add_argument("--loads", type=names, default=tuple(TRACES), help=f"some of {','.join(TRACES)}")
    parser.add_argument("--policies", type=names, default=("lru", "class"))
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-replay.json")
    arguments = parser.parse_args()
    if arguments.traces is None:
        parser.error("STEMCACHE_TRACES names no folder, and --traces neither: there are no traces to replay")
    return arguments


if __name__ == "__main__":
    main()
