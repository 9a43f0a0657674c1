"""What a replay is asked for and what it tells, for several capacities and policies. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cache_store.policies.choice import PolicyKind, policy_maker
from cache_store.replay.isolation import Isolation, isolation
from cache_store.replay.oracle import optimal_hit_tokens
from cache_store.replay.simulation import ReplayOptions, TraceTenant, replay
from cache_store.shadow import WatchRules


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


@dataclass(frozen=True, slots=True)
class TenantReport:
    """One tenant in one run. Rates are parts of its prompt tokens."""

    name: str
    num_requests: int
    prompt_tokens: int
    hit_tokens: int
    hit_rate: float
    evicted_blocks: int
    dropped_blocks: int
    isolation: Isolation | None


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
    options = ReplayOptions(num_blocks, policy_maker(kind), question.session_ends, question.num_windows, rules)
    result = replay(tenants, options)
    ratios = {each.tenant: each for each in isolation(tenants, result, options)} if question.with_isolation else {}
    return RunReport(
        policy=kind,
        num_blocks=num_blocks,
        capacity_share=num_blocks / num_unique,
        hit_rate=result.hit_rate,
        num_references=result.num_references,
        references_per_s=result.num_references / result.seconds if result.seconds else 0.0,
        tenants=tuple(
            TenantReport(
                name=name,
                num_requests=counts.num_requests,
                prompt_tokens=counts.prompt_tokens,
                hit_tokens=counts.hit_tokens,
                hit_rate=counts.hit_rate,
                evicted_blocks=counts.evicted_blocks,
                dropped_blocks=counts.dropped_blocks,
                isolation=ratios.get(name),
            )
            for name, counts in result.tenants.items()
        ),
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
        tenants=tuple(
            TenantReport(
                name=tenant.name,
                num_requests=len(tenant.trace.requests),
                prompt_tokens=totals[tenant.name],
                hit_tokens=hits[tenant.name],
                hit_rate=hits[tenant.name] / max(1, totals[tenant.name]),
                evicted_blocks=0,
                dropped_blocks=0,
                isolation=None,
            )
            for tenant in tenants
        ),
    )
