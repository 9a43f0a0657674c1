"""All faults, one after the other: `python -m tests.chaos`, or `make chaos`.

Each gets a cluster of its own: real processes for routers and workers, a real Valkey, real gRPC. Every stream is
compared with an oracle. Status 1 where one did not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.record import Record
from tests.chaos.faults.catalogue import FAULTS, Extent, Fault
from tests.chaos.outcome import Outcome, details, table


def main() -> int:
    """Runs what was asked for and prints the table."""
    arguments = _arguments()
    chosen = [fault for fault in FAULTS if not arguments.only or fault.name in arguments.only]
    if unknown := set(arguments.only) - {fault.name for fault in FAULTS}:
        print(f"there is no fault {', '.join(sorted(unknown))}; there are {', '.join(each.name for each in FAULTS)}")
        return 2
    outcomes: list[Outcome] = []
    record = Record.begin()
    for fault in chosen:
        print(f"== {fault.name}: {fault.what}", flush=True)
        outcomes.append(_run(fault, arguments.keep))
        print(details(outcomes[-1]), flush=True)
        if arguments.json:  # after each: whatever becomes of the next one
            record.write(arguments, figures={"outcomes": [each.as_json() for each in outcomes]})
    print(f"\n{table(outcomes)}")
    return int(any(outcome.failures for outcome in outcomes))


def _run(fault: Fault, keep: Path | None) -> Outcome:
    """One that raises has not held; the others go on."""
    started_s = time.monotonic()
    with _folder(keep) as folder:
        try:
            outcome = asyncio.run(fault.run(folder / fault.name, Extent.WHOLE))
        except Exception as error:  # a run reports all faults, whatever becomes of one
            traceback.print_exc()
            outcome = Outcome(fault.name, "unknown")
            outcome.claim(f"it ran to its end: {type(error).__name__}: {error}", seen=False)
    print(f"   {time.monotonic() - started_s:.0f} s", flush=True)
    return outcome


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Where everything of a run lies: short, since it holds a socket."""
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="sc-") as folder:
        yield Path(folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some of the faults")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep all logs there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
