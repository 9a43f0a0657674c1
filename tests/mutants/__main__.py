"""Puts each known error into a copy of the code and expects its named test to turn red there.

A mutant is one exact replacement of text in one file. The test must pass in the unchanged copy and fail in the changed
one; a replacement that no longer fits is an error, not a skip. Exit status 0 only where every mutant is caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.adapters import ADAPTERS
from tests.mutants.audits import AUDITS
from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.disk import SEALED
from tests.mutants.lower import TIERS
from tests.mutants.moves import MOVES
from tests.mutants.outages import OUTAGES
from tests.mutants.peers import PEERS
from tests.mutants.purges import PURGES
from tests.mutants.routers import ROUTERS
from tests.mutants.simulated import SIMULATED
from tests.mutants.windows import WINDOW_GROUPS

ALL = (
    *MUTANTS,
    *PURGES,
    *TIERS,
    *MOVES,
    *SEALED,
    *AUDITS,
    *WINDOW_GROUPS,
    *ADAPTERS,
    *ROUTERS,
    *OUTAGES,
    *PEERS,
    *SIMULATED,
)
ROOT = Path(__file__).parents[2]
TESTS_FAILED = 1
"""pytest's exit status where tests ran and failed; other non-zero ones mean that nothing was proven."""


def copy_of_the_code(target: Path) -> Path:
    """The tracked and new files of the checkout, without git's own."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    return target


def run_test(tree: Path, test: str) -> tuple[int, str]:
    """Exit status and output of one test in `tree`."""
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'proto'}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.returncode, done.stdout[-2000:] + done.stderr[-2000:]


def judge(tree: Path, mutant: Mutant, green: set[str]) -> str | None:
    """None where the mutant is caught, else what went wrong. `green` remembers tests that pass unchanged."""
    path = tree / mutant.file
    text = path.read_text()
    if text.count(mutant.before) != 1:
        return f"its text stands {text.count(mutant.before)} times in {mutant.file}, expected once"
    if mutant.test not in green:
        status, output = run_test(tree, mutant.test)
        if status:
            return f"its test does not pass on the unchanged code\n{output}"
        green.add(mutant.test)
    path.write_text(text.replace(mutant.before, mutant.after))
    try:
        status, output = run_test(tree, mutant.test)
    finally:
        path.write_text(text)
    if status == 0:
        return f"SURVIVED: {mutant.test} stays green"
    return None if status == TESTS_FAILED else f"pytest ended with {status}\n{output}"


def main() -> int:
    """Runs the mutants named on the command line, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(mutant.name for mutant in ALL))
    wanted = parser.parse_args().names
    unknown = set(wanted) - {mutant.name for mutant in ALL}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in ALL if not wanted or mutant.name in wanted]
    num_missed = 0
    green: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="stemcache-mutants-") as folder:
        tree = copy_of_the_code(Path(folder))
        for mutant in chosen:
            problem = judge(tree, mutant, green)
            num_missed += problem is not None
            print(f"{'caught' if problem is None else 'MISSED':8}{mutant.name:24}{mutant.what}", flush=True)
            if problem:
                print(f"        {problem}", flush=True)
    print(f"{len(chosen) - num_missed} of {len(chosen)} mutants caught")
    return 1 if num_missed else 0


if __name__ == "__main__":
    sys.exit(main())
