"""Logs when something goes out of reach and when it is back, not every try in between. Owned by who tries."""

from __future__ import annotations

import structlog

_log = structlog.get_logger()


class Outage:
    """State of one thing that is asked again and again."""

    def __init__(self, name: str) -> None:
        """`name` begins the events: `index.away`, `index.back`."""
        self._name = name
        self._is_away = False

    @property
    def is_away(self) -> bool:
        """Whether the last try failed."""
        return self._is_away

    def failed(self, reason: str) -> None:
        """The try failed."""
        if not self._is_away:
            _log.warning(f"{self._name}.away", reason=reason)
        self._is_away = True

    def succeeded(self) -> None:
        """The try did not fail."""
        if self._is_away:
            _log.info(f"{self._name}.back")
        self._is_away = False
