"""Asks the operator's API for the newest picture. Blocking; owned by one thread at a time."""

from __future__ import annotations

import time

from services.client import AdminClient
from services.console.cluster_view import ClusterView
from services.console.history import History


class Watch:
    """Of the system that a client talks to."""

    def __init__(self, client: AdminClient, history: History) -> None:
        self._client = client
        self._history = history

    def take(self) -> ClusterView:
        """How it is now, and how it went since the first call. Raises ApiError."""
        tenants = self._client.list_tenants()
        return self._history.take(self._client.status(), tenants, time.time(), time.monotonic())
