"""A supervised child process. It never outlives this one, whatever ends this one (see `die_with_parent.py`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from services.cluster.parts import Condition, Health

STOP_TIMEOUT_S = 30.0
_LAUNCHER = Path(__file__).with_name("die_with_parent.py")
_TAIL_BYTES = 1_500


class ProcessPart:
    """Runs `arguments` (first: an absolute path) with exactly `environment`; its output is appended to `log`."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        is_ready: Callable[[], bool],
    ) -> None:
        """`is_ready` is asked until it says yes for the first time after a start; it has to answer within a second."""
        self._name = name
        self._arguments = tuple(arguments)
        self._environment = dict(environment)
        self._log = log
        self._is_ready = is_ready
        self._process: subprocess.Popen[bytes] | None = None
        self._was_ready = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def arguments(self) -> tuple[str, ...]:
        """What everybody on the machine can see of it."""
        return self._arguments

    @property
    def pid(self) -> int | None:
        """Process id; None before the first start."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        assert threading.current_thread() is threading.main_thread(), "the child would end with this thread"
        self._was_ready = False
        launcher = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), str(int(signal.SIGTERM))]
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own arguments
                [*launcher, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=self._environment,
                start_new_session=True,  # Ctrl-C in a terminal is for the parent, which stops its parts in order
            )
        finally:
            os.close(descriptor)

    def condition(self) -> Condition:
        assert self._process is not None, "not started"
        code = self._process.poll()
        if code is not None:
            return Condition(Health.FAILED, f"ended with {_ending(code)}; {self._last_words()}")
        self._was_ready = self._was_ready or self._is_ready()
        return Condition(Health.READY) if self._was_ready else Condition(Health.STARTING, self._last_words())

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        with self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            line = file.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"{self._log} ends with: {line}"


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
