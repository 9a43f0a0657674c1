"""When requests are meant to be sent: pure, and drawn before anything is sent.

An open loop does not wait for answers: a server that is slow meets the same arrivals. Gaps are gamma distributed with
shape `burstiness`: 1 is a Poisson process, below it comes in bursts, above it is more even, infinity is constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from cache_store.errors import InvalidRequestError

MAX_CALLERS = 16_384
"""Of closed loops, all tenants together: each keeps a request and a stream in this process."""
MAX_REQUESTS = 1_000_000
"""Of one tenant: what came of each is kept until the run has ended."""


class RampKind(StrEnum):
    """How a rate grows from the first request to the last, as `vllm bench serve` names it."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that changes."""

    kind: RampKind
    start_rps: float
    end_rps: float

    def rate(self, progress: float) -> float:
        """Requests per second after that part (0 to 1) of the run."""
        if self.kind is RampKind.LINEAR:
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        return self.start_rps * math.exp(math.log(self.end_rps / self.start_rps) * progress)


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests come by themselves."""

    request_rate: float
    """Per second; infinity: all at once."""
    burstiness: float = 1.0
    ramp: Ramp | None = None
    """In place of `request_rate`."""
    max_concurrency: int | None = None
    """At most that many run; what waits for a place waits from its intended time on."""

    def __post_init__(self) -> None:
        _require("request-rate", self.request_rate)
        _require("burstiness", self.burstiness)
        if self.ramp:
            _require("ramp-up-start-rps", self.ramp.start_rps)
            _require("ramp-up-end-rps", self.ramp.end_rps)
            if math.isinf(self.ramp.start_rps) or math.isinf(self.ramp.end_rps):
                raise InvalidRequestError("ramp-up-end-rps", "a ramp goes between two finite rates")

    @property
    def name(self) -> str:
        """Kind of the process."""
        if math.isinf(self.request_rate) and self.ramp is None:
            return "immediate"
        return {1.0: "poisson", math.inf: "constant"}.get(self.burstiness, "gamma")


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` callers, each of which sends its next request when its last one has ended.

    It hides queueing: a slow server is asked less. For throughput at a given number of callers only.
    """

    concurrency: int

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MAX_CALLERS:
            raise InvalidRequestError(
                "max-concurrency", f"max-concurrency is {self.concurrency}; it is at least 1, at most {MAX_CALLERS:,}"
            )


@dataclass(frozen=True, slots=True)
class TraceTimes:
    """At the trace's own times, times `time_scale`: 0.5 is twice as fast."""

    time_scale: float = 1.0
    max_concurrency: int | None = None

    def __post_init__(self) -> None:
        _require("time-scale", self.time_scale)


Arrival = OpenLoop | ClosedLoop | TraceTimes


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is sent: at least one of them is given."""

    num_requests: int | None
    duration_s: float | None
    """From then on nothing is sent any more."""

    def __post_init__(self) -> None:
        if self.num_requests is None and self.duration_s is None:
            raise InvalidRequestError("num-prompts", "a run ends after --num-prompts or --duration; give one of them")
        if self.num_requests is not None and not 1 <= self.num_requests <= MAX_REQUESTS:
            raise InvalidRequestError(
                "num-prompts", f"num-prompts is {self.num_requests}; it is at least 1, at most {MAX_REQUESTS:,}"
            )
        if self.duration_s is not None:
            _require("duration", self.duration_s)


def arrival_times(
    open_loop: OpenLoop, bounds: Bounds, requests_each: float, rng: np.random.Generator
) -> Iterator[float]:
    """Seconds at which what makes `requests_each` requests is meant to start; the first at 0.

    Ends by the bounds' time only: their number is counted by who takes the times.
    """
    at_s, index = 0.0, 0
    while bounds.duration_s is None or at_s < bounds.duration_s:
        yield at_s
        index += 1
        rate = _rate(open_loop, bounds, at_s, index * requests_each) / requests_each
        at_s += _gap(rate, open_loop.burstiness, rng)
        if math.isinf(rate) and bounds.num_requests is None:
            raise InvalidRequestError("request-rate", "a request rate of inf needs --num-prompts: it would never end")


def _rate(open_loop: OpenLoop, bounds: Bounds, at_s: float, num_sent: float) -> float:
    if open_loop.ramp is None:
        return open_loop.request_rate
    if bounds.num_requests is not None:
        return open_loop.ramp.rate(min(1.0, num_sent / bounds.num_requests))
    assert bounds.duration_s is not None
    return open_loop.ramp.rate(min(1.0, at_s / bounds.duration_s))


def _gap(rate: float, burstiness: float, rng: np.random.Generator) -> float:
    if math.isinf(rate):
        return 0.0
    if math.isinf(burstiness):
        return 1.0 / rate
    return float(rng.gamma(burstiness, 1.0 / (rate * burstiness)))


def _require(name: str, value: float) -> None:
    if not value > 0:
        raise InvalidRequestError(name, f"{name} is {value:g}; it is above 0")
