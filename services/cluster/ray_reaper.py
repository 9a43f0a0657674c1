"""Ends what a local Ray left behind and removes its folder, once the launcher is gone. Run by path, never imported.

Arguments: the session's folder and the launcher's process id. Its standard input is a pipe from the launcher: its end,
orderly or by a crash, is the signal. A process belongs to the session where it holds a file below the folder open for
writing: Ray's agents and workers overwrite their titles and environments, but all of them log there.
"""

import contextlib
import os
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

QUIET_SCANS = 3
"""Scans in a row that must find nothing, since a dying parent may still have been starting children."""
PAUSE_S = 0.1
GIVE_UP_S = 20.0


def belongs(process: Path, folder: Path) -> bool:
    """Whether a process is part of the session. One that ended, or is another user's, is not."""
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return False
    return any(_writes_below(descriptor, folder) for descriptor in descriptors)


def members(folder: Path, launcher: int) -> list[int]:
    """Process ids of the session, but for the launcher."""
    others = (path for path in Path("/proc").iterdir() if path.name.isdigit())
    return [int(path.name) for path in others if int(path.name) != launcher and belongs(path, folder)]


def _writes_below(descriptor: Path, folder: Path) -> bool:
    try:
        return descriptor.readlink().is_relative_to(folder) and bool(descriptor.lstat().st_mode & stat.S_IWUSR)
    except OSError:  # closed meanwhile
        return False


def end_all(folder: Path, launcher: int) -> None:
    """Kills until nothing is left."""
    quiet, give_up = 0, time.monotonic() + GIVE_UP_S
    while quiet < QUIET_SCANS and time.monotonic() < give_up:
        found = members(folder, launcher)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if found else quiet + 1
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    session_folder, launcher_pid = Path(sys.argv[1]), int(sys.argv[2])
    while sys.stdin.buffer.read(4096):
        pass
    end_all(session_folder, launcher_pid)
    shutil.rmtree(session_folder, ignore_errors=True)
