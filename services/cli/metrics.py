"""`stemcache metrics`: what `stemcache status` knows, in Prometheus' text format, for the operator's monitoring.

Tenants are labels by name, MAX_TENANTS of them; those that use fewer blocks are added up under OTHER.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields, replace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.cli.connection import add_admin_flags, admin_client
from services.cli.exit_codes import ExitCode
from services.cli.status import add_use, tenant_totals
from services.client.admin_results import ClusterStatus, IndexCopyStatus, PressureStatus, TenantUse, WorkerStatus

MAX_TENANTS = 64
OTHER = "other"

_DEGRADED_REASONS = ("control_data", "registry", "renewals", "index", "limits")
_INDEX_GAUGES = {
    "domains": "Domains in the router's copy of the index.",
    "digests": "Digests in the router's copy of the index, over all domains and workers.",
    "followed_workers": "Workers whose changes are followed to the end.",
    "known_workers": "Workers that are known.",
}
_WORKER_GAUGES = {
    "running_requests": "Requests in the running batch.",
    "waiting_requests": "Requests that wait.",
    "used_blocks": "Blocks held or cached.",
    "total_blocks": "Blocks in the pool.",
    "kv_pool_bytes": "Bytes of all pools of the device.",
    "quota_generation": "Generation of the control data whose quotas are in force.",
}
_PRESSURE = {
    "lent_back_blocks": "Blocks taken back from tenants that had borrowed them.",
    "evicted_blocks": "Cached blocks that made room.",
    "stopped_admissions": "Steps in which a request had to wait because there were no blocks for it.",
    "preemptions": "Running requests that had to give up their blocks.",
    "yielded_pins": "Pins ended before their time.",
    "refused_requests": "Requests that could never fit.",
    "demoted_blocks": "Evicted blocks that went to a lower tier.",
}
_AUDIT = {
    "checked_blocks": "Cached blocks that were compared with computed ones.",
    "mismatches": "Cached blocks that differed and were put out of use: an alarm.",
    "skipped_hits": "Hits that were chosen for a check that could not be made, or not to its end.",
}
_PEERS = {
    "fetched_blocks": "Blocks that came from other workers and were taken in.",
    "fetched_bytes": "Bytes of blocks that came from other workers and were taken in.",
    "served_blocks": "Blocks sent to other workers.",
    "served_bytes": "Bytes of blocks sent to other workers.",
    "fetches": "Times that blocks were asked for.",
    "failed_fetches": "Fetches that ended before their time or brought nothing.",
    "refused_blocks": "Blocks of other workers that were not what was asked for, and were not used.",
    "declined_fetches": "Times that computing was faster than fetching.",
}
_TIER_GAUGES = {
    "used_blocks": "Blocks in the tier.",
    "total_blocks": "Blocks that fit into the tier.",
}
_LOAD_BLOCK_S = "Measured seconds to read one block back; 0 before the first measurement."
_TIER_COUNTERS = {
    "stored_blocks": "Blocks written to the tier.",
    "loaded_blocks": "Blocks read back from the tier.",
    "evicted_blocks": "Blocks evicted from the tier.",
    "dropped_blocks": "Blocks that were not worth being written to the tier, or had no room.",
    "failed_blocks": "Writes and reads that failed.",
}
_WINDOW_GAUGES = {
    "used_slots": "Slots of sliding layers held by running requests, or cached.",
    "total_slots": "Slots of sliding layers.",
    "cached_slots": "Slots of sliding layers kept for later hits or pins.",
    "max_cached_slots": "Slots of sliding layers that may be kept so.",
}
_TENANT_GAUGES = {
    "guaranteed_blocks": "Blocks that the tenant is guaranteed.",
    "max_blocks": "Blocks that the tenant may have at most.",
    "used_blocks": "Blocks that the tenant has, held or cached.",
    "held_blocks": "Blocks held by running requests and pins.",
    "pinned_blocks": "Blocks that are pinned.",
    "lent_blocks": "Blocks of the guarantee that others use now.",
    "waiting_requests": "Requests that wait.",
    "host_blocks": "Blocks of the tenant in the host's memory.",
    "disk_blocks": "Blocks of the tenant on disk.",
}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "metrics",
        help="print the state of router and workers for Prometheus",
        description="Prints what `stemcache status` shows in the text format of Prometheus.",
    )
    add_admin_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the metrics, whatever they say; a scraper wants a degraded system's too."""
    with admin_client(args) as client:
        status = client.status()
    print(metrics_text(status), end="")
    return ExitCode.OK


def metrics_text(status: ClusterStatus) -> str:
    """The text of one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StatusCollector(status))
    return generate_latest(registry).decode("utf-8")


class _StatusCollector(Collector):
    """Metrics of one status."""

    def __init__(self, status: ClusterStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        yield from _router_metrics(self._status)
        yield from _index_metrics(self._status.index_copy)
        yield from _worker_metrics(self._status.workers)
        yield from _tier_metrics(self._status.workers)
        yield from _window_metrics(self._status.workers)
        yield from _tenant_metrics(self._status)


def _router_metrics(status: ClusterStatus) -> Iterator[Metric]:
    values = {
        "stemcache_degraded": ("1 while something is lacking: exact and isolated, but slower.", status.degraded),
        "stemcache_control_age_seconds": ("Age of the control data.", status.control_age_s),
        "stemcache_control_generation": ("Generation of the control data.", status.control_generation),
        "stemcache_running_requests": ("Requests running through this router.", status.running_requests),
        "stemcache_workers": ("Live workers.", len(status.workers)),
        "stemcache_refused_workers": ("Workers that do not fit this router.", len(status.refused_workers)),
    }
    for name, (text, value) in values.items():
        yield GaugeMetricFamily(name, text, value=float(value))
    lacking = GaugeMetricFamily("stemcache_degraded_reason", "1 while this is lacking.", labels=("reason",))
    for reason in _DEGRADED_REASONS:
        lacking.add_metric((reason,), reason in status.degraded_reasons)
    yield lacking
    counters = {
        "stemcache_requests": ("Requests since the router's start.", status.planned_requests),
        "stemcache_degraded_requests": ("Of them those whose route was degraded.", status.degraded_requests),
    }
    for name, (text, count) in counters.items():
        yield CounterMetricFamily(name, text, value=count)


def _index_metrics(copy: IndexCopyStatus) -> Iterator[Metric]:
    for name, text in _INDEX_GAUGES.items():
        yield GaugeMetricFamily(f"stemcache_index_copy_{name}", text, value=getattr(copy, name))
    resyncs = "Times that a worker was forgotten and read anew."
    yield CounterMetricFamily("stemcache_index_copy_resyncs", resyncs, value=copy.resyncs)
    lookups = CounterMetricFamily("stemcache_index_lookups", "Lookups by who answered.", labels=("answer",))
    answers = {"copy": copy.copy_lookups, "redis": copy.script_lookups, "none": copy.failed_lookups}
    for answer, count in answers.items():
        lookups.add_metric((answer,), count)
    yield lookups


def _worker_metrics(workers: tuple[WorkerStatus, ...]) -> Iterator[Metric]:
    for name, text in _WORKER_GAUGES.items():
        gauge = GaugeMetricFamily(f"stemcache_worker_{name}", text, labels=("worker",))
        for worker in workers:
            gauge.add_metric((worker.worker_id,), getattr(worker, name))
        yield gauge
    speed = GaugeMetricFamily(
        "stemcache_worker_prefill_tokens_per_second", "Measured; 0 before the first measurement.", labels=("worker",)
    )
    size = GaugeMetricFamily("stemcache_worker_block_bytes", "Size of one block.", labels=("worker",))
    for worker in workers:
        speed.add_metric((worker.worker_id,), worker.prefill_tokens_per_s)
        size.add_metric((worker.worker_id,), worker.block_size * worker.kv_bytes_per_token)
    yield from (speed, size)
    for field in fields(PressureStatus):
        counter = CounterMetricFamily(f"stemcache_worker_{field.name}", _PRESSURE[field.name], labels=("worker",))
        for worker in workers:
            counter.add_metric((worker.worker_id,), getattr(worker.pressure, field.name))
        yield counter
    for name, text in _AUDIT.items():
        counter = CounterMetricFamily(f"stemcache_worker_audit_{name}", text, labels=("worker",))
        for worker in workers:
            counter.add_metric((worker.worker_id,), getattr(worker.audit, name))
        yield counter
    for name, text in _PEERS.items():
        counter = CounterMetricFamily(f"stemcache_worker_peer_{name}", text, labels=("worker",))
        for worker in workers:
            counter.add_metric((worker.worker_id,), getattr(worker.peers, name))
        yield counter


def _tier_metrics(workers: tuple[WorkerStatus, ...]) -> Iterator[Metric]:
    labels = ("worker", "tier")
    tiers = [((worker.worker_id, tier.tier), tier) for worker in workers for tier in worker.tiers]
    speed = GaugeMetricFamily("stemcache_tier_load_block_seconds", _LOAD_BLOCK_S, labels=labels)
    for names, tier in tiers:
        speed.add_metric(names, tier.load_block_s)
    yield speed
    for name, text in _TIER_GAUGES.items():
        gauge = GaugeMetricFamily(f"stemcache_tier_{name}", text, labels=labels)
        for names, tier in tiers:
            gauge.add_metric(names, getattr(tier, name))
        yield gauge
    for name, text in _TIER_COUNTERS.items():
        counter = CounterMetricFamily(f"stemcache_tier_{name}", text, labels=labels)
        for names, tier in tiers:
            counter.add_metric(names, getattr(tier, name))
        yield counter


def _window_metrics(workers: tuple[WorkerStatus, ...]) -> Iterator[Metric]:
    windows = [((each.worker_id, str(window.window)), window) for each in workers for window in each.windows]
    for name, text in _WINDOW_GAUGES.items():
        gauge = GaugeMetricFamily(f"stemcache_window_{name}", text, labels=("worker", "window"))
        for names, window in windows:
            gauge.add_metric(names, getattr(window, name))
        yield gauge


def _tenant_metrics(status: ClusterStatus) -> Iterator[Metric]:
    labels = ("worker", "tenant")
    uses = {(worker.worker_id, use.tenant): use for worker in status.workers for use in _bounded(status, worker)}
    for name, text in _TENANT_GAUGES.items():
        gauge = GaugeMetricFamily(f"stemcache_tenant_{name}", text, labels=labels)
        for names, use in uses.items():
            gauge.add_metric(names, getattr(use, name))
        yield gauge
    evicted = CounterMetricFamily("stemcache_tenant_evicted_blocks", "The tenant's evicted blocks.", labels=labels)
    for names, use in uses.items():
        evicted.add_metric(names, use.evicted_blocks)
    yield evicted


def _bounded(status: ClusterStatus, worker: WorkerStatus) -> list[TenantUse]:
    """A worker's tenants: those with a label of their own, and the others added up."""
    named = {use.tenant for use in tenant_totals(status)[:MAX_TENANTS]}
    result: dict[str, TenantUse] = {}
    for use in worker.tenants:
        label = use.tenant if use.tenant in named else OTHER
        labelled = replace(use, tenant=label)
        result[label] = add_use(result[label], labelled) if label in result else labelled
    return list(result.values())
