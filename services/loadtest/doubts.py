"""What makes a run's figures doubtful, in words. Pure: each is a fault that load tests are known for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.loadtest.conditions import CacheState, MachineLoad
from services.loadtest.records import RequestRow
from services.loadtest.statistics import latency_summary

MAX_LAG_MS = 10.0
"""At the 99th percentile of an open loop."""
MAX_CLIENT_SHARE = 0.9
"""Of a core: the client has one thread that sends."""
MAX_LOAD_SHARE = 0.5
MAX_OTHERS_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known after a run."""

    rows: Sequence[RequestRow]
    cache_state: CacheState
    open_loop: bool
    """Whether any tenant sent by a schedule."""
    miscounted: int
    """Requests whose prompts the server counted otherwise than the workload."""
    client_cpu_share: float
    """Processor time of this process per second of the run."""
    load_before: MachineLoad
    cores: int
    server_prompt_tokens: float
    """By which the server's own count grew; 0 where it was not asked."""


def doubts(evidence: Evidence) -> tuple[str, ...]:
    """Sentences; none where all is well."""
    return tuple(_doubts(evidence))


def _doubts(evidence: Evidence) -> Iterator[str]:
    rows = evidence.rows
    done = [row for row in rows if row.completed]
    if not done:
        yield "no request came to its end: there is nothing to go by"
        return
    warm = [row for row in done if row.cacheable_tokens is not None and row.cached_tokens > row.cacheable_tokens]
    if warm:
        yield (
            f"{len(warm)} requests had more tokens cached than this run had sent before: the cache was warm, or is "
            "shared with others; the hit rate is not this workload's"
        )
    if evidence.cache_state in (CacheState.KEPT, CacheState.UNKNOWN):
        yield "the cache was not emptied before: hits of earlier runs are counted, and there is no upper bound"
    if evidence.miscounted:
        yield f"{evidence.miscounted} prompts have another number of tokens for the server than for the workload"
    yield from _client_doubts(evidence)
    others = evidence.server_prompt_tokens - sum(row.prompt_tokens for row in rows)
    if others > MAX_OTHERS_SHARE * evidence.server_prompt_tokens:
        yield (
            f"others used the system meanwhile: {others / evidence.server_prompt_tokens * 100:.0f} % of its prompt "
            "tokens were not this run's"
        )
    degraded = sum(row.degraded for row in done)
    if degraded:
        yield f"{degraded} requests were routed with less than usual: `stemcache status` tells what is lacking"
    if len(done) < len(rows):
        yield f"{len(rows) - len(done)} of {len(rows)} requests failed; latencies are those of the others"


def _client_doubts(evidence: Evidence) -> Iterator[str]:
    if evidence.open_loop:
        lag_ms = latency_summary(row.schedule_lag_s for row in evidence.rows).p(99)
        if lag_ms > MAX_LAG_MS:
            yield (
                f"requests were sent up to {lag_ms:.0f} ms (p99) later than meant: the client was the bottleneck, or "
                "--max-concurrency held them back; latencies count from when they were meant to be sent"
            )
    if evidence.client_cpu_share > MAX_CLIENT_SHARE:
        yield (
            f"this client used {evidence.client_cpu_share * 100:.0f} % of a core: it may be the bottleneck; lower the "
            "rate, or run several"
        )
    if evidence.load_before.cpu_share > MAX_LOAD_SHARE:
        yield (
            f"{evidence.load_before.cpu_share * 100:.0f} % of {evidence.cores} cores were in use before the run began"
        )
