"""What the operator's API says while a run goes on: samples over time, and what counters grew by.

Looks are taken in a thread, so that a slow answer delays nothing that is measured. Keeps all samples of one run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields

from services.client import ApiError
from services.client.admin_results import ClusterStatus, PressureStatus, WorkerStatus
from services.loadtest.records import ServerSample, TenantSample, TierSample, WorkerSample

CounterKey = tuple[str, str]
"""Whose it is (the router, a tenant, or one start of a worker), and its name."""
_TIER_COUNTERS = ("stored_blocks", "loaded_blocks", "evicted_blocks", "dropped_blocks", "failed_blocks")
_PEER_COUNTERS = ("fetches", "fetched_blocks", "failed_fetches", "declined_fetches")


class ServerWatch:
    """Looks at a system until its task is cancelled."""

    def __init__(
        self, look: Callable[[], ClusterStatus], now_s: Callable[[], float], every_s: float, labels: Mapping[str, str]
    ) -> None:
        """`look` may block; `now_s` are the seconds of the run; `labels` are its tenants by the server's names."""
        self._look = look
        self._now_s = now_s
        self._every_s = every_s
        self._labels = labels
        self.samples: list[ServerSample] = []
        self.failed_looks = 0

    async def look(self) -> ClusterStatus | None:
        """The state now; None where the operator's API did not answer."""
        try:
            return await asyncio.to_thread(self._look)
        except ApiError:
            self.failed_looks += 1
            return None

    async def run(self) -> None:
        """Takes a sample every so often."""
        while True:
            began_s = self._now_s()
            await self.sample()
            await asyncio.sleep(max(0.0, self._every_s - (self._now_s() - began_s)))

    async def sample(self) -> ClusterStatus | None:
        """The same, kept as a sample."""
        status = await self.look()
        if status is not None:
            self.samples.append(sample_of(status, round(self._now_s(), 3), self._labels))
        return status


def sample_of(status: ClusterStatus, at_s: float, labels: Mapping[str, str]) -> ServerSample:
    """What of a status is kept."""
    return ServerSample(
        at_s=at_s,
        running_requests=status.running_requests,
        planned_requests=status.planned_requests,
        degraded_requests=status.degraded_requests,
        degraded_reasons=status.degraded_reasons,
        workers=tuple(_worker(each, labels) for each in status.workers),
    )


def counters(status: ClusterStatus) -> dict[CounterKey, float]:
    """Everything that only grows, until a part starts anew."""
    found: dict[CounterKey, float] = {
        ("router", "planned_requests"): status.planned_requests,
        ("router", "degraded_requests"): status.degraded_requests,
    }
    for traffic in status.traffic:
        cached = traffic.device_tokens + traffic.host_tokens + traffic.disk_tokens + traffic.peer_tokens
        found[traffic.tenant, "prompt_tokens"] = traffic.prompt_tokens
        found[traffic.tenant, "cached_tokens"] = cached
    for worker in status.workers:
        own = f"{worker.worker_id}/{worker.incarnation}"
        found |= {(own, each.name): getattr(worker.pressure, each.name) for each in fields(PressureStatus)}
        found |= {(own, f"peers.{name}"): getattr(worker.peers, name) for name in _PEER_COUNTERS}
        for tier in worker.tiers:
            found |= {(own, f"{tier.tier}.{name}"): getattr(tier, name) for name in _TIER_COUNTERS}
    return found


def grown(before: dict[CounterKey, float], after: dict[CounterKey, float]) -> dict[str, float]:
    """What counters grew by, by name over all parts; one that started between counts from 0."""
    sums: Counter[str] = Counter()
    for (own, name), value in after.items():
        sums[name] += max(0.0, value - before.get((own, name), 0.0))  # type: ignore[assignment]  # Counters add floats
    return dict(sums)


def pool_tokens(status: ClusterStatus) -> int:
    """Tokens that the KV pools of all workers hold."""
    return sum(worker.total_blocks * worker.block_size for worker in status.workers)


def _worker(worker: WorkerStatus, labels: Mapping[str, str]) -> WorkerSample:
    tiers = (
        TierSample(
            each.tier, each.used_blocks, each.total_blocks, each.stored_blocks, each.loaded_blocks, each.evicted_blocks
        )
        for each in worker.tiers
    )
    tenants = (
        TenantSample(
            tenant=labels.get(each.tenant, each.tenant),
            guaranteed_blocks=each.guaranteed_blocks,
            max_blocks=each.max_blocks,
            used_blocks=each.used_blocks,
            held_blocks=each.held_blocks,
            lent_blocks=each.lent_blocks,
            host_blocks=each.host_blocks,
            disk_blocks=each.disk_blocks,
            evicted_blocks=each.evicted_blocks,
            waiting_requests=each.waiting_requests,
        )
        for each in worker.tenants
    )
    return WorkerSample(
        worker=worker.worker_id,
        running_requests=worker.running_requests,
        waiting_requests=worker.waiting_requests,
        used_blocks=worker.used_blocks,
        total_blocks=worker.total_blocks,
        evicted_blocks=worker.pressure.evicted_blocks,
        preemptions=worker.pressure.preemptions,
        demoted_blocks=worker.pressure.demoted_blocks,
        lent_back_blocks=worker.pressure.lent_back_blocks,
        tiers=tuple(tiers),
        tenants=tuple(tenants),
    )
