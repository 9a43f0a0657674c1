"""Keeps the last samples of a system's counters, and makes what an operator sees out of them and the newest status.

Owned by one thread or event loop.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from services.client.admin_results import ClusterStatus, Tenant, WorkerStatus
from services.console.cluster_view import ClusterView, Rate, TenantView, Trends, WorkerView
from services.console.marks import cluster_marks, worker_marks
from services.console.tenant_tiers import UseByTenant, tenant_tiers, worker_tiers

MAX_SAMPLES = 180
SMOOTH_SAMPLES = 10
"""Over which each point of a hit rate's line is taken: prompts come one by one."""

MAX_TENANTS = 200


@dataclass(slots=True)
class _Sample:
    """What came since the sample before."""

    seconds: float
    running: int
    waiting: int
    requests: Counter[str] = field(default_factory=Counter)
    """By tenant, as are all but the last."""
    prompt_tokens: Counter[str] = field(default_factory=Counter)
    cached_tokens: Counter[str] = field(default_factory=Counter)
    tenant_evicted: Counter[str] = field(default_factory=Counter)
    worker_evicted: Counter[str] = field(default_factory=Counter)


class History:
    """Of one system."""

    def __init__(self, max_samples: int = MAX_SAMPLES) -> None:
        self._samples: deque[_Sample] = deque(maxlen=max_samples)
        self._before: ClusterStatus | None = None
        self._before_s = 0.0

    def take(self, status: ClusterStatus, tenants: Iterable[Tenant], unix_s: float, now_s: float) -> ClusterView:
        """A newer status, with the terms of all tenants; `now_s` by a clock that does not jump."""
        sample = _Sample(
            max(0.0, now_s - self._before_s),
            running=sum(each.running_requests for each in status.workers),
            waiting=sum(each.waiting_requests for each in status.workers),
        )
        if self._before is not None:
            _count(sample, self._before, status)
            self._samples.append(sample)
        self._before, self._before_s = status, now_s
        return self._view(status, tenant_tiers(status, tenants), sample, unix_s)

    def _view(self, status: ClusterStatus, tenants: list[UseByTenant], newest: _Sample, unix_s: float) -> ClusterView:
        window_s = sum(each.seconds for each in self._samples)
        total = self._total(status, window_s)
        shown = tenants[:MAX_TENANTS]
        return ClusterView(
            version=status.version,
            taken_unix_s=unix_s,
            marks=cluster_marks(status),
            running_requests=newest.running,
            waiting_requests=newest.waiting,
            requests_per_s=_per_s(total.requests.total(), window_s),
            hit_rate=_rate(total.cached_tokens.total(), total.prompt_tokens.total()),
            window_s=window_s,
            evicted_per_s=_per_s(total.worker_evicted.total(), window_s),
            workers=tuple(self._worker(each, status, total, window_s) for each in status.workers),
            tenants=tuple(self._tenant(each, total, window_s) for each in shown),
            tenants_left_out=len(tenants) - len(shown),
            trends=Trends(
                hit_rates=_line([(s.cached_tokens.total(), s.prompt_tokens.total()) for s in self._samples]),
                running=tuple(each.running for each in self._samples),
                waiting=tuple(each.waiting for each in self._samples),
                evicted_per_s=tuple(_per_s(each.worker_evicted.total(), each.seconds) for each in self._samples),
            ),
        )

    def _total(self, status: ClusterStatus, window_s: float) -> _Sample:
        """Over the window; of a first status, what was counted since the start."""
        total = _Sample(window_s, 0, 0)
        if not self._samples:
            total.prompt_tokens.update({each.tenant: each.prompt_tokens for each in status.traffic})
            total.cached_tokens.update({each.tenant: each.cached_tokens for each in status.traffic})
        for each in self._samples:
            total.requests.update(each.requests)
            total.prompt_tokens.update(each.prompt_tokens)
            total.cached_tokens.update(each.cached_tokens)
            total.tenant_evicted.update(each.tenant_evicted)
            total.worker_evicted.update(each.worker_evicted)
        return total

    def _tenant(self, use: UseByTenant, total: _Sample, window_s: float) -> TenantView:
        name = use.name
        return TenantView(
            name=name,
            tiers=use.tiers,
            waiting_requests=use.waiting_requests,
            requests_per_s=_per_s(total.requests[name], window_s),
            hit_rate=_rate(total.cached_tokens[name], total.prompt_tokens[name]),
            hit_rates=_line([(each.cached_tokens[name], each.prompt_tokens[name]) for each in self._samples])
            if total.prompt_tokens[name]
            else (),
            evicted_blocks=use.evicted_blocks,
            evicted_per_s=_per_s(total.tenant_evicted[name], window_s),
        )

    def _worker(self, worker: WorkerStatus, status: ClusterStatus, total: _Sample, window_s: float) -> WorkerView:
        return WorkerView(
            worker_id=worker.worker_id,
            model=worker.model,
            address=worker.address,
            running_requests=worker.running_requests,
            max_running=worker.max_num_sequences,
            waiting_requests=worker.waiting_requests,
            tiers=worker_tiers(worker),
            prefill_tokens_per_s=worker.prefill_tokens_per_s,
            evicted_blocks=worker.pressure.evicted_blocks,
            evicted_per_s=_per_s(total.worker_evicted[worker.worker_id], window_s),
            preemptions=worker.pressure.preemptions,
            marks=worker_marks(worker, status),
        )


def _count(sample: _Sample, before: ClusterStatus, now: ClusterStatus) -> None:
    """What was counted between two statuses. A counter that fell began anew."""
    asked = {each.tenant: each for each in before.traffic}
    for each in now.traffic:
        known = asked.get(each.tenant)
        if known is None or known.requests > each.requests:
            requests, prompt, cached = 0, 0, 0
        else:
            requests, prompt, cached = known.requests, known.prompt_tokens, known.cached_tokens
        if each.requests > requests:
            sample.requests[each.tenant] = each.requests - requests
            sample.prompt_tokens[each.tenant] = each.prompt_tokens - prompt
            sample.cached_tokens[each.tenant] = each.cached_tokens - cached
    lives = {each.incarnation: each for each in before.workers}
    for worker in now.workers:
        if (earlier := lives.get(worker.incarnation)) is None:
            continue
        if num_evicted := worker.pressure.evicted_blocks - earlier.pressure.evicted_blocks:
            sample.worker_evicted[worker.worker_id] += num_evicted
        evicted = {use.tenant: use.evicted_blocks for use in earlier.tenants}
        for use in worker.tenants:
            num_evicted = use.evicted_blocks - evicted.get(use.tenant, use.evicted_blocks)
            if num_evicted > 0:
                sample.tenant_evicted[use.tenant] += num_evicted


def _line(counts: list[tuple[int, int]]) -> tuple[Rate, ...]:
    """Hit rates of cached and prompt tokens, each over a few samples."""
    line: list[Rate] = []
    cached = prompt = 0
    for at, (more_cached, more_prompt) in enumerate(counts):
        cached, prompt = cached + more_cached, prompt + more_prompt
        if at >= SMOOTH_SAMPLES:
            cached, prompt = cached - counts[at - SMOOTH_SAMPLES][0], prompt - counts[at - SMOOTH_SAMPLES][1]
        line.append(_rate(cached, prompt))
    return tuple(line)


def _rate(cached: int, prompt: int) -> Rate:
    return cached / prompt if prompt else None


def _per_s(number: int, seconds: float) -> float:
    return number / seconds if seconds else 0.0
