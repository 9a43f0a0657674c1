"""Runs benchmarks one after the other and writes the page: `python -m tests.bench.page.run`, or `make bench-all`.

It says first what it will run and how long that takes. A benchmark that fails is told at the end, the others go on, and
its old result stays. Each result is taken as soon as it is there, without its samples; those stay in `build/`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.bench.machine import ROOT
from tests.bench.page.catalogue import BENCHES, Bench
from tests.bench.page.render import PAGE, render
from tests.bench.page.results import FOLDER, ResultError, condense, read_folder, read_result

_PATIENCE = 5.0
"""Times what it should take; then it is ended, since others wait."""
_BUILD = ROOT / "build"


def main() -> int:
    arguments = _arguments()
    chosen = [bench for bench in BENCHES if bench.name in arguments.only and bench.name not in arguments.skip]
    _announce(chosen)
    if arguments.list:
        return 0
    failed = {}
    for number, bench in enumerate(chosen, start=1):
        print(f"\n[{number}/{len(chosen)}] {bench.title}", flush=True)
        began_s = time.monotonic()
        if why := _take(bench) if arguments.take else _run(bench):
            failed[bench.name] = why
        print(f"[{number}/{len(chosen)}] {bench.name}: {why or 'done'}, {time.monotonic() - began_s:.0f} s", flush=True)
    PAGE.write_text(render(read_folder(FOLDER)), encoding="utf-8")
    print(f"\nwritten: {PAGE.name}, of {FOLDER.relative_to(ROOT)}/")
    for name, why in failed.items():
        print(f"FAILED: {name}: {why}")
    return int(bool(failed))


def _announce(chosen: Sequence[Bench]) -> None:
    for bench in chosen:
        print(f"  {bench.name:16}{bench.minutes:5.1f} min  {bench.title}")
    print(f"{len(chosen)} benchmarks, about {sum(bench.minutes for bench in chosen):.0f} minutes on an idle machine")
    if not os.environ.get("STEMCACHE_TRACES"):
        print("STEMCACHE_TRACES names no folder of traces: cluster runs without the public ones, replay not at all")
    sys.stdout.flush()


def _run(bench: Bench) -> str:
    """Why there is no result; empty: there is one."""
    kept = _BUILD / f"bench-{bench.name}.json"
    kept.unlink(missing_ok=True)
    command = [sys.executable, "-m", *bench.words, "--json", str(kept)]
    environment = {**os.environ, **bench.environment}
    try:
        run = subprocess.run(command, cwd=ROOT, env=environment, timeout=bench.minutes * 60 * _PATIENCE)
    except subprocess.TimeoutExpired:
        return f"ended after {_PATIENCE:g} times of what it should take"
    if not kept.exists():
        return f"status {run.returncode}, and no result"
    return _take(bench) or (f"status {run.returncode}; its result was taken" if run.returncode else "")


def _take(bench: Bench) -> str:
    """Makes what it left in `build/` its result, where a page can be made of it."""
    kept = _BUILD / f"bench-{bench.name}.json"
    path = FOLDER / f"{bench.name}.json"
    try:
        text = condense(kept.read_text(encoding="utf-8"))
        bench.tables(read_result(text))
    except (OSError, ResultError, LookupError, TypeError) as error:
        return f"it left no result that a table can be made of: {type(error).__name__}: {error}"
    FOLDER.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page.run", description=__doc__)
    names = tuple(bench.name for bench in BENCHES)
    parser.add_argument("--only", type=_names, default=names, help=f"some of {','.join(names)}")
    parser.add_argument("--skip", type=_names, default=(), help="all but some")
    parser.add_argument("--list", action="store_true", help="only say what would run and how long it takes")
    parser.add_argument("--take", action="store_true", help="run nothing; take what earlier runs left in build/")
    arguments = parser.parse_args()
    if unknown := {*arguments.only, *arguments.skip} - set(names):
        parser.error(f"{', '.join(sorted(unknown))}: none of {', '.join(names)}")
    return arguments


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    sys.exit(main())
