"""What one run is to do, as values: made by the command line, read by the lifecycle and written into the conditions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from services.loadtest.arrivals import Arrival, Bounds, ClosedLoop, OpenLoop, TraceTimes
from services.loadtest.conditions import Setting, StatedConditions
from services.loadtest.result import MAIN_PERCENTILES
from services.loadtest.workloads import WorkloadSpec


class CacheStart(StrEnum):
    """What the cache holds when the measured part begins."""

    FRESH = "fresh"
    """A partition that nobody has used."""
    PURGE = "purge"
    """The named partition, purged."""
    KEEP = "keep"
    """Whatever is there."""


class Priming(StrEnum):
    """What is sent before the measured part."""

    PREFIXES = "prefixes"
    """Each shared prefix once."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TenantPlan:
    """One tenant's part."""

    tenant: str
    """As the run calls it; tokens are drawn by that name."""
    server_name: str
    """As the server calls it."""
    api_key: str = field(repr=False)
    weight: float
    spec: WorkloadSpec
    arrival: Arrival
    bounds: Bounds
    quota: Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All of it."""

    tenants: tuple[TenantPlan, ...]
    seed: int
    partition: str
    """Of all tenants' requests."""
    cache_start: CacheStart
    priming: Priming
    num_warmups: int
    """Requests that only warm the model, past the cache."""
    drain_s: float
    sample_s: float
    """Between two looks at the server."""
    percentiles: tuple[float, ...]
    goodput_ms: Mapping[str, float]
    pool_tokens: int
    """Of the KV pools; 0: ask the operator's API."""
    settings: Mapping[str, Setting]
    """Flags, for the conditions."""
    stated: StatedConditions | None = None
    """What is known of the server otherwise than by asking it."""

    @property
    def workload(self) -> str:
        """Names of the workloads, for people and folders."""
        return "+".join(dict.fromkeys(each.spec.kind for each in self.tenants))

    @property
    def request_rate(self) -> float:
        """Of all open loops together; infinite where none has a rate."""
        rates = [each.arrival.request_rate for each in self.tenants if isinstance(each.arrival, OpenLoop)]
        return sum(rates) if rates else math.inf

    @property
    def burstiness(self) -> float:
        """Of the first open loop; 1 where there is none."""
        loops = [each.arrival for each in self.tenants if isinstance(each.arrival, OpenLoop)]
        return loops[0].burstiness if loops else 1.0

    @property
    def max_concurrency(self) -> int | None:
        """Of all tenants together; None where one of them has no limit."""
        limits = [concurrency_of(each.arrival) for each in self.tenants]
        known = [each for each in limits if each is not None]
        return sum(known) if len(known) == len(limits) else None

    @property
    def num_prompts(self) -> int:
        """Planned over all tenants; 0 where only time bounds them."""
        return sum(each.bounds.num_requests or 0 for each in self.tenants)

    @property
    def arrival_name(self) -> str:
        """Kinds of arrival processes."""
        return "+".join(dict.fromkeys(name_of(each.arrival) for each in self.tenants))


def main_percentiles(asked: tuple[float, ...]) -> tuple[float, ...]:
    """Those that were asked for, and those that every result has, in order."""
    return tuple(sorted({*MAIN_PERCENTILES, *asked}))


def concurrency_of(arrival: Arrival) -> int | None:
    """Most requests at once."""
    return arrival.concurrency if isinstance(arrival, ClosedLoop) else arrival.max_concurrency


def name_of(arrival: Arrival) -> str:
    """`poisson`, `gamma`, `constant`, `immediate`, `trace` or `closed`."""
    match arrival:
        case OpenLoop():
            return arrival.name
        case TraceTimes():
            return "trace"
        case ClosedLoop():
            return "closed"
