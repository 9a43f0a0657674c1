"""How well this router can serve now, and what it lacks: for the operator. Owns no state, asks the parts."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from cache_store.redis_replica import ReplicaStats
from services.router.cluster_limits import ClusterLimits
from services.router.generations import PlanCounts
from services.router.registry_view import RegistryView
from services.router.traffic import Traffic
from services.tenants.directory import TenantDirectory


class Degraded(StrEnum):
    """Why requests are served with less than usual: exact and isolated, but slower."""

    CONTROL_DATA = "control_data"
    """It is older than its bound: nothing is reused."""
    REGISTRY = "registry"
    """Out of reach: workers are those that were known, with old reports."""
    RENEWALS = "renewals"
    """No worker renews its lease: workers are those that were known and answer, with old reports."""
    INDEX = "index"
    """Out of reach: routed by what was known of it."""
    LIMITS = "limits"
    """What other routers use of tenants' limits is not known: each keeps to its share."""


class Running(Protocol):
    """Whoever knows how many generations run."""

    @property
    def num_running(self) -> int: ...


class Index(Protocol):
    """Whoever looks up blocks."""

    @property
    def stats(self) -> ReplicaStats: ...


class Condition:
    """Of one router."""

    def __init__(
        self,
        directory: TenantDirectory,
        view: RegistryView,
        index: Index,
        limits: ClusterLimits,
        running: Running,
        counts: PlanCounts,
        traffic: Traffic,
    ) -> None:
        self._directory = directory
        self._view = view
        self._index = index
        self._limits = limits
        self._running = running
        self.counts = counts
        """Requests since the start."""
        self.console_url = ""
        """Where operators look with a browser; empty: nowhere."""
        self.traffic = traffic
        """What they asked of the cache and found, by tenant."""
        self.metrics_address = ""
        """Where its metrics are read, once that is known; empty: nowhere."""

    @property
    def index(self) -> ReplicaStats:
        """What the router knows of the index by itself."""
        return self._index.stats

    @property
    def num_running(self) -> int:
        """Generations that have not ended."""
        return self._running.num_running

    def reasons(self) -> tuple[Degraded, ...]:
        """What is lacking; nothing while all is well."""
        lacking = {
            Degraded.CONTROL_DATA: self._directory.is_stale,
            Degraded.REGISTRY: not self._view.is_reachable,
            Degraded.RENEWALS: not self._view.is_renewed,
            Degraded.INDEX: not self._index.stats.is_reachable,
            Degraded.LIMITS: self._limits.is_degraded,
        }
        return tuple(reason for reason, is_lacking in lacking.items() if is_lacking)
