"""What the supervisor supervises: a part that can be started, asked how it is, and stopped."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Health(StrEnum):
    """How a started part is."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    LEFT = "left"
    """Has ended because somebody told it to: nothing is to take its place."""


@dataclass(frozen=True, slots=True)
class Condition:
    """How a part is, and why."""

    health: Health
    reason: str = ""
    """For a part that failed or left: what happened and where to read more; for a starting one what it last said."""


class Part(Protocol):
    """One process or actor. Called from the main thread only; calls are short, except `stop`."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    def start(self) -> None:
        """Begins a start and does not wait for its end. Also called again after a failure. Raises StemcacheError."""
        ...

    def condition(self) -> Condition:
        """How it is now; after `start`, before `stop`."""
        ...

    def stop(self) -> None:
        """Ends it and waits, with a bound. Idempotent; also after a failure or before a start."""
        ...
