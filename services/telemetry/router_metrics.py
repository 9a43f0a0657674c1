"""What a router shows: its own condition, and the tenants' part of what workers told. Read at each scrape; no state.

Tenants appear here and not at workers: only routers know their names. Several routers tell the same of the same
workers, so whoever adds up takes the largest of each worker and tenant first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cache_store.registry import WorkerRecord
from cache_store.telemetry.families import Family, FamilyKind, Labels, counter, counters, family, gauge, gauges
from cache_store.telemetry.process import process_families
from cache_store.usage import TenantUse
from services.router.condition import Condition, Degraded
from services.router.registry_view import RegistryView
from services.telemetry.request_metrics import RequestMetrics
from services.tenants.directory import TenantDirectory
from services.version import VERSION

_WAITING = "Requests of the tenant that wait at the worker."


@dataclass(frozen=True, slots=True)
class RouterMetrics:
    """Of one router."""

    requests: RequestMetrics
    directory: TenantDirectory
    view: RegistryView
    condition: Condition

    def families(self) -> list[Family]:
        """As of now."""
        records = self.view.records()
        return [
            *process_families(),
            *self._condition_families(records),
            *self._index_families(),
            *self.requests.families(),
            *self._tenant_families(records),
        ]

    def _condition_families(self, records: Sequence[WorkerRecord]) -> Iterator[Family]:
        reasons = self.condition.reasons()
        age_s = self.directory.age_s()
        counts = self.condition.counts
        yield gauge("stemcache_build_info", "1; the version is a label.", 1, (("version", VERSION),))
        yield gauges(
            "stemcache_degraded",
            "1 while that is lacking: answers are exact and isolated, but slower.",
            "reason",
            {reason: float(reason in reasons) for reason in Degraded},
        )
        if math.isfinite(age_s):
            yield gauge("stemcache_control_data_age_seconds", "Age of the router's control data.", age_s)
        yield gauge("stemcache_control_data_generation", "Its generation.", self.directory.generation)
        yield gauge("stemcache_running_requests", "Requests that run through this router.", self.condition.num_running)
        yield counter("stemcache_planned_requests_total", "Requests that were planned.", counts.num_planned)
        yield counter("stemcache_degraded_requests_total", "Of them degraded ones.", counts.num_degraded)
        yield gauge("stemcache_workers", "Workers that this router sees.", len(records))
        draining = sum(record.draining for record in records)
        yield gauge("stemcache_draining_workers", "Of them those that take nothing new.", draining)
        yield gauge("stemcache_refused_workers", "Workers that do not fit this router.", len(self.view.refused))

    def _index_families(self) -> Iterator[Family]:
        stats = self.condition.index
        yield gauge(
            "stemcache_index_lag_seconds",
            "Since the changes of the worker that is furthest behind were read.",
            stats.lag_s,
        )
        yield gauge(
            "stemcache_index_followed_workers", "Workers whose changes are read to the end.", stats.num_followed
        )
        yield gauge("stemcache_index_known_workers", "Workers whose changes are to be read.", stats.num_known)
        yield gauge("stemcache_index_digests", "Blocks of all workers in this router's copy.", stats.num_digests)
        yield counter("stemcache_index_resyncs_total", "Times that a worker was read anew.", stats.num_resyncs)
        answers = {"copy": stats.num_copy_lookups, "redis": stats.num_script_lookups, "none": stats.num_failed_lookups}
        yield counters("stemcache_index_lookups_total", "Lookups, by who answered.", "answer", answers)

    def _tenant_families(self, records: Sequence[WorkerRecord]) -> Iterator[Family]:
        uses = [(record.worker_id, label, use) for record in records for label, use in self._bounded(record).items()]
        waiting = [(_of(worker, label), float(use.waiting_requests)) for worker, label, use in uses]
        yield family("stemcache_tenant_waiting_requests", FamilyKind.GAUGE, _WAITING, waiting)
        for state, text in _TENANT_STATES.items():
            values = [(_of(worker, label), float(getattr(use, f"{state}_blocks"))) for worker, label, use in uses]
            yield family(f"stemcache_tenant_{state}_blocks", FamilyKind.GAUGE, text, values)
        evicted = [(_of(worker, label), float(use.evicted_blocks)) for worker, label, use in uses]
        text = "The tenant's blocks that left the device's cache."
        yield family("stemcache_tenant_evicted_blocks_total", FamilyKind.COUNTER, text, evicted)

    def _bounded(self, record: WorkerRecord) -> dict[str, TenantUse]:
        """A worker's tenants by label, those without one of their own added up."""
        found: dict[str, TenantUse] = {}
        for use in record.load.tenants:
            tenant = self.directory.tenant_by_id(use.tenant)
            if tenant is None:
                continue  # deleted: what is left of it is on its way out
            label = self.requests.labels.of(tenant.id, tenant.name)
            found[label] = found[label].plus(use) if label in found else use
        return found


_TENANT_STATES = {
    "guaranteed": "Blocks of the device that the tenant is guaranteed.",
    "max": "Blocks of the device that the tenant may have.",
    "used": "Blocks of the device that the tenant has, held or cached.",
    "held": "Blocks of the device that the tenant's requests and pins hold.",
    "pinned": "Blocks of the device that the tenant has pinned.",
    "lent": "Blocks of the guarantee that others use.",
    "host": "Blocks of the tenant in the host's memory.",
    "disk": "Blocks of the tenant on disk.",
}


def _of(worker: str, label: str) -> Labels:
    return (("worker", worker), ("tenant", label))
