"""Whether this machine has a C++ compiler that works; tests of the kernel are skipped by name where it has none."""

from __future__ import annotations

import subprocess

import pytest

from worker.torch_runner.compiler import Compiler, find_compiler


def working_compiler() -> Compiler | None:
    """The compiler that a worker would find, if it is one: $CC may name something else, such as /bin/false."""
    found = find_compiler()
    if found is None:
        return None
    asked = subprocess.run([*found.command, "--version"], capture_output=True, check=False)
    return found if asked.returncode == 0 else None


needs_compiler = pytest.mark.skipif(working_compiler() is None, reason="no C++ compiler")


def compiler() -> Compiler:
    """For tests that are marked with `needs_compiler`."""
    found = working_compiler()
    assert found is not None
    return found
