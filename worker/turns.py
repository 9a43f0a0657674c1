"""Loads that wait for the thread that carries them out: tenants take turns, so that one's do not delay another's.

A tenant names as many domains as it likes: those take the turns of their tenant. Filled by the engine's thread, emptied
by one other.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence

from cache_store.domain import TenantId
from cache_store.transfers import Load

_Domains = OrderedDict[bytes, deque[Load]]
"""By root, the one whose turn it is first."""


class LoadTurns:
    """First come, first served within a domain."""

    def __init__(self, num_each: int) -> None:
        """`num_each`: most loads of a turn."""
        self._num_each = num_each
        self._waiting: OrderedDict[TenantId, _Domains] = OrderedDict()
        self._fresh: list[Load] = []
        self._is_closed = False
        self._changed = threading.Condition()

    def put(self, loads: Sequence[Load]) -> None:
        """They go to the end of their domains' queues; a tenant or a domain without one comes last."""
        with self._changed:
            for load in loads:
                domains = self._waiting.setdefault(load.tenant, OrderedDict())
                domains.setdefault(load.name.root, deque()).append(load)
            self._fresh += loads
            self._changed.notify()

    def take(self) -> list[Load]:
        """Loads of the tenant whose turn it is, all of one domain; waits for some. Nothing after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return []
            tenant, domains = self._waiting.popitem(last=False)
            root, waiting = domains.popitem(last=False)
            taken = [waiting.popleft() for _ in range(min(len(waiting), self._num_each))]
            if waiting:
                domains[root] = waiting
            if domains:
                self._waiting[tenant] = domains
            return taken

    def fresh(self) -> list[Load]:
        """Those that were put since the last call, whether they were taken or not."""
        with self._changed:
            fresh, self._fresh = self._fresh, []
            return fresh

    def close(self) -> None:
        """Nothing is given out any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
