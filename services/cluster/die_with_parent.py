"""Becomes another program that ends with the process that started it. Run by path, never imported.

Arguments: process id of the parent, number of the signal, then the program and its arguments. The kernel sends the
signal when the parent's *thread* ends that started this process, so it has to be started from the main thread.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, death_signal = int(sys.argv[1]), int(sys.argv[2])
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before the signal was asked for
        sys.exit(1)
    os.execv(sys.argv[3], sys.argv[3:])  # noqa: S606 - without a shell, as it should be
