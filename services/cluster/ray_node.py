"""A Ray node of this process alone, on which nothing is placed: whoever places workers needs one on its own machine.

It joins a cluster that others run, and ends with this process. Knows no workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import structlog

from cache_store.errors import PreconditionError
from services.settings import environment, set_ray_environment

STOP_TIMEOUT_S = 20.0
_LAUNCHER = Path(__file__).with_name("die_with_parent.py")
_STARTED = "--block"
"""Ray says that it was given this option when everything runs."""

_log = structlog.get_logger(__name__)


class RayNode:
    """Runs within its `with` block. Main thread only: it ends with the thread that starts it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._process: subprocess.Popen[str] | None = None
        self._said = ""

    def failure(self) -> str | None:
        """Why it is of no use any more; None while it runs."""
        if self._process is None or self._process.poll() is None:
            return None
        return f"this machine's Ray node ended with status {self._process.returncode}: {self._said}"

    def __enter__(self) -> Self:
        """Raises PreconditionError where it cannot join."""
        set_ray_environment()
        options = [f"--address={self._address}", "--num-cpus=0", "--num-gpus=0", "--object-store-memory=80000000"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *options]
        launcher = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), str(int(signal.SIGTERM))]
        self._process = subprocess.Popen(  # noqa: S603 - our own arguments
            [*launcher, *command],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said = line.strip() or self._said
            if _STARTED in line:
                threading.Thread(target=_drain, args=(self._process.stdout,), name="ray-node-log", daemon=True).start()
                _log.info("ray_node.joined", address=self._address)
                return self
        self._process.wait()
        raise PreconditionError(
            f"this machine cannot join Ray at {self._address}: {self._said}; is the address right, does the head run, "
            "and has this machine the cluster's token (RAY_AUTH_MODE=token with RAY_AUTH_TOKEN_PATH)?"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _drain(stream: IO[str]) -> None:
    """Reads on, so that nobody waits for room in the pipe."""
    for _ in stream:
        pass
