"""The local Ray as a supervised part. Requests do not need it, so they go on while it is away; placing workers does."""

from __future__ import annotations

from typing import Protocol

from services.cluster.parts import Condition, Health


class Restartable(Protocol):
    """What is supervised: a Ray that was started before, and is closed by whoever started it."""

    def failure(self) -> str | None:
        """Why it is of no use any more."""
        ...

    def restart(self) -> None:
        """Starts it anew; what it ran is gone."""
        ...


class RayPart:
    """Implements `services.cluster.parts.Part`."""

    def __init__(self, cluster: Restartable) -> None:
        self._cluster = cluster

    @property
    def name(self) -> str:
        return "ray"

    def start(self) -> None:
        if self._cluster.failure() is not None:
            self._cluster.restart()

    def condition(self) -> Condition:
        failure = self._cluster.failure()
        return Condition(Health.READY) if failure is None else Condition(Health.FAILED, failure)

    def stop(self) -> None:
        """Nothing: its folder is closed by whoever opened it."""
