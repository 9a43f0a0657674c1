"""Writes BENCHMARKS.md of the results that are there: `python -m tests.bench.page`; `--check` only compares."""

from __future__ import annotations

import argparse
import sys

from tests.bench.page.render import PAGE, render
from tests.bench.page.results import FOLDER, read_folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where the page is another")
    arguments = parser.parse_args()
    page = render(read_folder(FOLDER))
    if arguments.check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page)
    PAGE.write_text(page, encoding="utf-8")
    print(f"written: {PAGE.relative_to(PAGE.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
