"""What a replay is asked for and what it tells, for several capacities and policies. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cache_store.policies.choice import PolicyKind, policy_maker
from cache_store.replay.isolation import Isolation, isolation
from cache_store.replay.oracle import optimal_hit_tokens
from cache_store.replay.simulation import ReplayOptions, ReplayResult, TraceTenant, replay
from cache_store.shadow import WatchRules
from cache_store.tier_kind import TierKind, TierSizes
from cache_store.usage import TierLoad


@dataclass(frozen=True, slots=True)
class Question:
    """What to run."""

    capacities: tuple[int, ...]
    """In blocks."""
    policies: tuple[PolicyKind, ...]
    session_ends: float
    num_windows: int
    useless_density: float
    """Share of blocks hit below which a guarantee may be lent; 0: none is."""
    with_oracle: bool
    with_isolation: bool
    host_factor: float = 0.0
    """Blocks in the host's memory, as a multiple of each capacity."""
    disk_factor: float = 0.0

    def sizes(self, num_blocks: int) -> TierSizes:
        """Of the tiers below a device of `num_blocks`."""
        return TierSizes(int(self.host_factor * num_blocks), int(self.disk_factor * num_blocks))


@dataclass(frozen=True, slots=True)
class TenantReport:
    """One tenant in one run. Rates are parts of its prompt tokens."""

    name: str
    num_requests: int
    prompt_tokens: int
    hit_tokens: int
    hit_rate: float
    host_hit_rate: float
    """Of it, what lay in the host's memory."""
    disk_hit_rate: float
    evicted_blocks: int
    dropped_blocks: int
    isolation: Isolation | None


@dataclass(frozen=True, slots=True)
class TierReport:
    """One tier below the device in one run."""

    tier: str
    num_blocks: int
    hit_rate: float
    """Of all prompt tokens, those whose blocks lay there."""
    written_blocks: int
    loaded_blocks: int
    evicted_blocks: int
    dropped_blocks: int
    """Not worth being written, or without room."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """One capacity under one policy; `policy` is `optimum` for what no policy can exceed."""

    policy: str
    num_blocks: int
    capacity_share: float
    """Of the unique blocks of all tenants."""
    hit_rate: float
    num_references: int
    references_per_s: float
    """Blocks of prompts per second of processor time; 0 for the optimum."""
    tiers: tuple[TierReport, ...]
    """Below the device."""
    tenants: tuple[TenantReport, ...]


def run(tenants: Sequence[TraceTenant], question: Question, num_unique: int) -> list[RunReport]:
    """All runs, by capacity, the optimum last."""
    reports = []
    for num_blocks in question.capacities:
        for kind in question.policies:
            reports.append(_run(tenants, question, num_unique, num_blocks, kind))
        if question.with_oracle:
            reports.append(_optimum(tenants, num_unique, num_blocks))
    return reports


def _run(
    tenants: Sequence[TraceTenant], question: Question, num_unique: int, num_blocks: int, kind: PolicyKind
) -> RunReport:
    rules = WatchRules(useless_density=question.useless_density)
    options = ReplayOptions(
        num_blocks,
        policy_maker(kind),
        question.session_ends,
        question.num_windows,
        rules,
        question.sizes(num_blocks),
    )
    result = replay(tenants, options)
    ratios = {each.tenant: each for each in isolation(tenants, result, options)} if question.with_isolation else {}
    return RunReport(
        policy=kind,
        num_blocks=num_blocks,
        capacity_share=num_blocks / num_unique,
        hit_rate=result.hit_rate,
        num_references=result.num_references,
        references_per_s=result.num_references / result.seconds if result.seconds else 0.0,
        tiers=tuple(_tier_report(load, result) for load in result.tiers),
        tenants=tuple(
            TenantReport(
                name=name,
                num_requests=counts.num_requests,
                prompt_tokens=counts.prompt_tokens,
                hit_tokens=counts.hit_tokens,
                hit_rate=counts.hit_rate,
                host_hit_rate=counts.host_hit_tokens / max(1, counts.prompt_tokens),
                disk_hit_rate=counts.disk_hit_tokens / max(1, counts.prompt_tokens),
                evicted_blocks=counts.evicted_blocks,
                dropped_blocks=counts.dropped_blocks,
                isolation=ratios.get(name),
            )
            for name, counts in result.tenants.items()
        ),
    )


def _tier_report(load: TierLoad, result: ReplayResult) -> TierReport:
    is_host = load.tier is TierKind.HOST
    hits = (each.host_hit_tokens if is_host else each.disk_hit_tokens for each in result.tenants.values())
    return TierReport(
        tier=load.tier,
        num_blocks=load.num_blocks,
        hit_rate=sum(hits) / max(1, result.prompt_tokens),
        written_blocks=load.stored_blocks,
        loaded_blocks=load.loaded_blocks,
        evicted_blocks=load.evicted_blocks,
        dropped_blocks=load.dropped_blocks,
    )


def _optimum(tenants: Sequence[TraceTenant], num_unique: int, num_blocks: int) -> RunReport:
    hits = optimal_hit_tokens(tenants, num_blocks)
    totals = {tenant.name: tenant.trace.num_tokens for tenant in tenants}
    return RunReport(
        policy="optimum",
        num_blocks=num_blocks,
        capacity_share=num_blocks / num_unique,
        hit_rate=sum(hits.values()) / max(1, sum(totals.values())),
        num_references=sum(tenant.trace.num_references for tenant in tenants),
        references_per_s=0.0,
        tiers=(),
        tenants=tuple(
            TenantReport(
                name=tenant.name,
                num_requests=len(tenant.trace.requests),
                prompt_tokens=totals[tenant.name],
                hit_tokens=hits[tenant.name],
                hit_rate=hits[tenant.name] / max(1, totals[tenant.name]),
                host_hit_rate=0.0,
                disk_hit_rate=0.0,
                evicted_blocks=0,
                dropped_blocks=0,
                isolation=None,
            )
            for tenant in tenants
        ),
    )
