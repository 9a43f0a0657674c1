"""The folder of one local Ray, and the guard that empties it: nothing of a session outlives its launcher.

The guard is a small process that waits for the end of the launcher. Also after a SIGKILL of the launcher it ends every
process of the session and removes the folder. Knows no Ray.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cache_store.errors import PreconditionError

CLEAN_TIMEOUT_S = 30.0
_REAPER = Path(__file__).with_name("ray_reaper.py")
_SOCKET_PATH_BYTES = 107
"""What the kernel takes for a Unix socket."""
_LONGEST_BELOW = len("/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store")


class RaySession:
    """A private temporary folder under guard. `close` ends everything in it."""

    def __init__(self) -> None:
        """Raises PreconditionError where temporary paths are too long for Ray's sockets."""
        folder = Path(tempfile.mkdtemp(prefix="sc-ray-"))
        if len(os.fsencode(folder)) + _LONGEST_BELOW > _SOCKET_PATH_BYTES:
            folder.rmdir()
            raise PreconditionError(
                f"{folder.parent} is too long a path for Ray's sockets; set TMPDIR to a shorter one"
            )
        self.folder = folder
        self._guard = subprocess.Popen(  # noqa: S603 - our own arguments
            [sys.executable, "-I", "-S", str(_REAPER), str(folder), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is not for it
            cwd="/",
        )

    def close(self) -> None:
        """Ends what is left of the session and removes its folder. Idempotent.

        Raises PreconditionError where something does not end.
        """
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        try:
            self._guard.wait(CLEAN_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise PreconditionError(
                f"processes of the local Ray in {self.folder} do not end; look for them with: fuser -v {self.folder}"
            ) from error
