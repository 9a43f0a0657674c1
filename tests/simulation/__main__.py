"""Runs seeds of the simulation: `python -m tests.simulation --seed N --trace` replays one and tells what happens."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.world import Result, run_seed


def command_of(seed: int) -> str:
    """What replays a seed."""
    return f"python -m tests.simulation --seed {seed} --trace"


def main() -> int:
    """Exit status 1 where a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--count", type=int, default=1, help="how many")
    parser.add_argument("--trace", action="store_true", help="tell everything that happens")
    parser.add_argument("--digest", action="store_true", help="tell the digest of what happened")
    parser.add_argument("--stop", action="store_true", help="stop at the first seed that fails")
    options = parser.parse_args()
    num_failed = 0
    started_s = time.perf_counter()
    for seed in range(options.seed, options.seed + options.count):
        result = run_seed(seed)
        num_failed += result.problem is not None
        _tell(result, options.trace, options.digest)
        if num_failed and options.stop:
            return 1
    took_s = time.perf_counter() - started_s
    print(f"{options.count - num_failed} of {options.count} seeds are well, {took_s:.1f} s")
    return 1 if num_failed else 0


def _tell(result: Result, is_traced: bool, is_digest: bool) -> None:
    if is_traced:
        print("\n".join(result.lines))
    if is_digest:
        print(f"seed {result.seed} digest {result.digest}")
    if result.problem is not None:
        print(f"seed {result.seed} FAILED: {result.problem}\n  replay it: {command_of(result.seed)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
