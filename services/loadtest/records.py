"""What a load test writes down as it runs: one line per request, one line per look at the server.

All times are seconds from the start of the measured part of the run, but for those that say `unix`. What is added up of
them is `services/loadtest/result.py`, under what conditions `services/loadtest/conditions.py`, in which files
`services/loadtest/results_folder.py`. Values; nobody owns them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

OK = "OK"
"""Status of a request that came to its end."""
INTERRUPTED = "INTERRUPTED"
"""Of one that was running when the run was ended from outside, or that outlasted it."""
HIT_SHARE = 0.5
"""Part of a prompt that was cached, from which on a request counts as a hit."""


class CacheOutcome(StrEnum):
    """How much of a prompt was reused."""

    HIT = "hit"
    """HIT_SHARE of it or more."""
    PARTIAL = "partial"
    MISS = "miss"
    """Nothing."""


@dataclass(frozen=True, slots=True)
class TierTokens:
    """Cached tokens by the tier where they lay. All 0 where a server tells their sum only."""

    device: int = 0
    host: int = 0
    disk: int = 0
    peer: int = 0


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """What the server says of one request; absent (None in the row) where it says nothing."""

    receive_unix_s: float
    route_s: float
    """Authentication, tokenisation, lookup and choice at the router."""
    queue_s: float
    """From the worker's receipt to the first step."""
    prefill_s: float
    decode_s: float
    preempted_s: float = 0.0
    """It stood still because its blocks were given to others; part of prefill or decode."""
    recompute_s: float = 0.0
    """To compute again what preemptions had thrown away; part of prefill or decode."""
    swap_s: float = 0.0
    """It waited for its blocks to come back from a lower tier."""
    preemptions: int = 0
    recomputed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One line of requests.jsonl (and of prime.jsonl, for requests that only filled the cache).

    Latencies count from `intended_s`, when the arrival process wanted it sent, and not from `sent_s`: what waited in
    the client because the server was slow has waited. In a closed loop both are the same but for the client's own lag.
    """

    index: int
    """By intended time within the run, from 0."""
    tenant: str
    workload: str
    """Name of the workload that made it; a tenant may have one only."""
    intended_s: float
    sent_s: float
    end_s: float
    """Last message, or the failure."""
    status: str
    """OK, INTERRUPTED, a gRPC code by name (RESOURCE_EXHAUSTED), or HTTP_429."""
    request_id: str = ""
    session: str | None = None
    """Conversation or agent run."""
    turn: int | None = None
    """Within the session, from 0."""
    prefix_group: str | None = None
    """Requests of one group, within one tenant, begin with the same tokens."""
    first_token_s: float | None = None
    """Arrival of the first token; None where none came."""
    arrivals_s: tuple[float, ...] = ()
    """Arrival of each message that brought tokens; the first is `first_token_s`."""
    arrival_tokens: tuple[int, ...] = ()
    """Tokens in each of those messages; empty: one each."""
    prompt_tokens: int = 0
    """As the server counted; where it failed before it said so, as the workload counted."""
    completion_tokens: int = 0
    max_tokens: int = 0
    """Asked for."""
    cached_tokens: int = 0
    cached_by_tier: TierTokens = TierTokens()
    cacheable_tokens: int | None = None
    """Most prompt tokens that could be cached, given all that this tenant had sent before, by a cache that is large
    enough and keeps full blocks; None where it is not known."""
    written_tokens: int = 0
    """That the request added to the cache; 0 where the server does not say."""
    prefix_tokens: int = 0
    """Length of the prefix that the workload shares with other requests, in tokens."""
    worker: str = ""
    """Opaque; empty where the server does not say."""
    attempts: int = 1
    """Workers that the router tried."""
    degraded: bool = False
    server: ServerTimes | None = None
    error: str = ""
    """What the server said."""

    @property
    def completed(self) -> bool:
        """Came to its end."""
        return self.status == OK

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from the intended send."""
        return None if self.first_token_s is None else self.first_token_s - self.intended_s

    @property
    def e2el_s(self) -> float:
        """End-to-end latency, from the intended send."""
        return self.end_s - self.intended_s

    @property
    def schedule_lag_s(self) -> float:
        """How much later than intended the client sent it: of an open loop the client's own fault."""
        return self.sent_s - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token without the first; None for fewer than two tokens."""
        if self.first_token_s is None or self.completion_tokens < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.completion_tokens - 1)

    @property
    def itls_s(self) -> tuple[float, ...]:
        """Gaps between messages that brought tokens, one per message but the first."""
        return tuple(b - a for a, b in zip(self.arrivals_s, self.arrivals_s[1:], strict=False))

    @property
    def cached_share(self) -> float:
        """Part of the prompt that was reused."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def outcome(self) -> CacheOutcome:
        """Hit, miss, or something between."""
        if not self.cached_tokens:
            return CacheOutcome.MISS
        return CacheOutcome.HIT if self.cached_share >= HIT_SHARE else CacheOutcome.PARTIAL


@dataclass(frozen=True, slots=True)
class TierSample:
    """A tier below the device of one worker; counts since the worker's start."""

    tier: str
    """`host` or `disk`."""
    used_blocks: int
    total_blocks: int
    stored_blocks: int
    loaded_blocks: int
    evicted_blocks: int


@dataclass(frozen=True, slots=True)
class TenantSample:
    """A tenant's blocks, on one worker; counts since the worker's start."""

    tenant: str
    guaranteed_blocks: int
    max_blocks: int
    used_blocks: int
    """On the device, held or cached."""
    held_blocks: int
    lent_blocks: int
    """Of its guarantee, used by others now."""
    host_blocks: int
    disk_blocks: int
    evicted_blocks: int
    waiting_requests: int


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """One worker at one time; counts since its start."""

    worker: str
    running_requests: int
    waiting_requests: int
    used_blocks: int
    total_blocks: int
    evicted_blocks: int
    preemptions: int
    demoted_blocks: int
    lent_back_blocks: int
    tiers: tuple[TierSample, ...] = ()
    tenants: tuple[TenantSample, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerSample:
    """One line of server_metrics.jsonl: what the operator's API said at one time."""

    at_s: float
    """From the start of the measured part; below 0 before it."""
    running_requests: int
    planned_requests: int
    """Since the router's start; likewise the next one."""
    degraded_requests: int
    degraded_reasons: tuple[str, ...] = ()
    workers: tuple[WorkerSample, ...] = ()
