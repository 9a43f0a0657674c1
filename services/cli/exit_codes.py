"""What the exit status of `stemcache` says."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """One per kind of outcome; argparse itself ends with USAGE."""

    OK = 0
    REFUSED = 1
    """The request was understood and not fulfilled, or `doctor` found a problem."""
    USAGE = 2
    UNAVAILABLE = 3
    """Nothing answers, or it cannot serve now: try again later."""
    UNDECIDED = 4
    """A test could not tell: it says neither that all is well nor that something is wrong."""
    INTERRUPTED = 130


DESCRIPTION = (
    "exit status: 0 done, 1 refused or a problem found, 2 bad usage, 3 not reachable now, 4 a test could not tell, "
    "130 interrupted"
)
