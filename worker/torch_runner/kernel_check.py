"""Compiles the kernels ahead of the first worker, and says with what.

    python -m worker.torch_runner.kernel_check CACHE_DIR

One line on standard output, or one line on standard error and exit status 1: work then goes on without the kernels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from worker.torch_runner.compiler import find_compiler
from worker.torch_runner.kernel_build import Kernel, KernelBuildError, build_kernel


def main(arguments_given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m worker.torch_runner.kernel_check", description="Compiles the kernels."
    )
    parser.add_argument("cache_dir", type=Path)
    arguments = parser.parse_args(arguments_given)
    compiler = find_compiler()
    if compiler is None:
        sys.stderr.write("no C++ compiler: install g++ or clang++, or name one in $CXX\n")
        return 1
    try:
        for kernel in Kernel:
            build_kernel(compiler, arguments.cache_dir, kernel)
    except KernelBuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"kernels compiled by {' '.join(compiler.command)}\n")
    return 0


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    sys.exit(main())
