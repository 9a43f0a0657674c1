"""A part of a system that is as well as a test says."""

from __future__ import annotations

from cache_store.errors import PreconditionError
from services.cluster.parts import Condition, Health


class ScriptedPart:
    """Records its starts and stops into `journal`, shared with other parts to see their order."""

    def __init__(self, name: str, journal: list[str]) -> None:
        self._name = name
        self._journal = journal
        self.now = Condition(Health.STARTING)
        self.start_error = ""
        self.stop_error = ""

    @property
    def name(self) -> str:
        return self._name

    def start(self) -> None:
        self._journal.append(f"start {self._name}")
        if self.start_error:
            raise PreconditionError(self.start_error)

    def condition(self) -> Condition:
        return self.now

    def stop(self) -> None:
        self._journal.append(f"stop {self._name}")
        if self.stop_error:
            raise PreconditionError(self.stop_error)

    def become(self, health: Health, reason: str = "") -> None:
        self.now = Condition(health, reason)
