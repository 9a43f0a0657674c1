"""SIGINT and SIGTERM as a request that is looked at, not as an exception: what was started is stopped in order."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self

from cache_store.errors import CancelledRequestError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Catches both signals within its `with` block. Main thread only."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._name = ""
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        self._previous = {number: signal.getsignal(number) for number in _SIGNALS}
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what getsignal gave

    def install(self) -> None:
        """Takes the signals again after a library took them."""
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    @property
    def requested(self) -> bool:
        """Whether one came."""
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Sleeps, at most until one comes; whether one came."""
        return self._event.wait(timeout_s)

    def check(self) -> None:
        """Raises CancelledRequestError once one came: for the steps of a start."""
        if self.requested:
            raise CancelledRequestError(f"stopped by {self._name} before everything had started")

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._name = signal.Signals(number).name
        self._event.set()
