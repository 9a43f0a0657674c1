"""Compiles the attention kernel ahead of the first worker, and says with what.

    python -m worker.torch_runner.kernel_check CACHE_DIR

One line on standard output, or one line on standard error and exit status 1: attention then goes on without the kernel.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from worker.torch_runner.compiler import find_compiler
from worker.torch_runner.kernel_build import KernelBuildError, build_kernel


def main(arguments_given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m worker.torch_runner.kernel_check", description="Compiles the kernel."
    )
    parser.add_argument("cache_dir", type=Path)
    arguments = parser.parse_args(arguments_given)
    compiler = find_compiler()
    if compiler is None:
        sys.stderr.write("no C++ compiler: install g++ or clang++, or name one in $CXX\n")
        return 1
    try:
        build_kernel(compiler, arguments.cache_dir)
    except KernelBuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"kernel compiled by {' '.join(compiler.command)}\n")
    return 0


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    sys.exit(main())
