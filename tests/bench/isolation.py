"""Whether a tenant can tell what another one has cached: `python -m tests.bench.isolation`, or `make bench-isolation`.

Starts `stemcache up` as a user does and runs `stemcache loadtest run --assert-isolation` against it. A leak is a result
too, and ends it with status 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.machine import ROOT, versions
from tests.bench.record import Record
from tests.support.running_up import start_up

_STEMCACHE = (sys.executable, "-m", "services.cli")


def main() -> int:
    arguments = _arguments()
    record = Record.begin()
    with tempfile.TemporaryDirectory(prefix="sc-") as folder:
        system = start_up(
            Path(folder) / "up",
            "--runner",
            arguments.runner,
            "--console-port",
            "0",
            "--workers",
            str(arguments.workers),
        )
        try:
            status, found = _assert(Path(folder), arguments)
        finally:
            system.stop()
    found["variants"] = found.get("variants", [])  # none where it could not begin
    raw = [variant.pop("ttft_ms", None) for variant in found["variants"]]
    record.write(arguments, figures=found, raw=raw, versions=versions("grpcio", "torch"))
    return status


def _assert(folder: Path, arguments: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    told = ("loadtest", "run", "--assert-isolation", "--within", arguments.within, "--data-dir", str(folder / "up"))
    command = (*_STEMCACHE, *told, *arguments.limit, "--result-dir", str(folder / "result"))
    run = subprocess.run(command, cwd=ROOT)
    path = folder / "result" / "isolation.json"
    if not path.exists():
        raise SystemExit(f"the isolation test came to no result (status {run.returncode})")
    found: dict[str, Any] = json.loads(path.read_text())
    return run.returncode, found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.isolation", description=__doc__)
    parser.add_argument("--runner", choices=("paged", "digest"), default="paged", help="SmolLM2, or no model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--within", default="7m", help="what the test may take, about")
    parser.add_argument("--thorough", dest="limit", action="store_const", const=("--thorough",), default=())
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-isolation.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
