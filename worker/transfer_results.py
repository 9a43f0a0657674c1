"""Who still owes the engine a result: begun transfers by id, and those that ended and were not told yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from cache_store.transfers import TransferId, TransferResult


class TransferResults:
    """Shared by the engine's thread and those in the background. Each id is told once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owed: set[TransferId] = set()
        self._ended: list[TransferResult] = []
        self._wake: Callable[[], None] = lambda: None

    def notify(self, wake: Callable[[], None]) -> None:
        """`wake` is called when there is something to take where there was nothing."""
        self._wake = wake

    def begin(self, transfer: TransferId) -> None:
        """From now on its result is owed."""
        with self._lock:
            assert transfer not in self._owed, "a transfer is begun twice"
            self._owed.add(transfer)

    def end(self, transfer: TransferId, ok: bool, seconds: float = 0.0) -> None:
        """Its result; ignored where it was told already, as a hung transfer's is after the end."""
        with self._lock:
            if transfer not in self._owed:
                return
            self._owed.remove(transfer)
            is_first = not self._ended
            self._ended.append(TransferResult(transfer, ok, seconds))
        if is_first:
            self._wake()

    def fail(self, transfers: Iterable[TransferId]) -> None:
        """They end as failed."""
        for transfer in transfers:
            self.end(transfer, ok=False)

    def fail_all(self) -> None:
        """Whatever is owed ends as failed."""
        with self._lock:
            owed = sorted(self._owed)
        self.fail(owed)

    def take(self) -> tuple[TransferResult, ...]:
        """What ended since the last call."""
        with self._lock:
            ended, self._ended = tuple(self._ended), []
        return ended

    def wake(self) -> None:
        """Something else has to be looked at."""
        self._wake()
