"""Which C++ compiler to use, by the convention of all build tools: $CXX, else $CC, else c++ or g++ on the PATH.

These two variables belong to the machine's build environment and are no settings of ours, so they are read here.
"""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command that compiles C++."""

    command: tuple[str, ...]


def find_compiler() -> Compiler | None:
    """The compiler, or None where there is none. A variable that is set decides, also when it names nothing usable."""
    named = os.environ.get("CXX") or os.environ.get("CC")
    if named:
        command = tuple(shlex.split(named))
        return Compiler(command) if shutil.which(command[0]) else None
    return next((Compiler((name,)) for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
