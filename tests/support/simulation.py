"""Tenants that send at their own rates to one engine, on a simulated clock: times to the first token.

The token-digest runner advances the clock by what a step would take: seconds are exact, seeds repeat and nobody
sleeps. Arrivals are an open loop: a request counts from when it was meant to be sent, busy or not.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from cache_store.clock import Clock, ManualClock
from cache_store.domain import Domain
from cache_store.errors import UnavailableError
from cache_store.quota import EMPTY_QUOTAS, QuotaTable
from cache_store.tokens import pack
from tests.support.domains import make_domain
from tests.support.engines import sampling
from worker.digest_runner import DigestRunner, Durations, digest_model
from worker.engine import Engine
from worker.engine_config import EngineConfig
from worker.requests import CacheMode, EngineRequest, Finished, Generated, RequestKey

BLOCK_SIZE = 16
VOCAB_SIZE = 32_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one tenant sends. Lengths are drawn evenly from their ranges, times between requests exponentially."""

    tenant: str
    requests_per_s: float
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    begin_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A worker and its speed."""

    num_blocks: int
    durations: Durations
    config: EngineConfig

    def share(self, part: float) -> Machine:
        """A worker with that part of the speed, the pool and the places."""
        durations = Durations(self.durations.step_s / part, self.durations.token_s / part)
        config = EngineConfig(
            num_step_tokens=self.config.num_step_tokens,
            num_max_sequences=max(1, int(self.config.num_max_sequences * part)),
            num_max_waiting=self.config.num_max_waiting,
            watermark=self.config.watermark,
        )
        return Machine(int(self.num_blocks * part), durations, config)


@dataclass(slots=True)
class Outcome:
    """What became of one tenant's requests."""

    ttft_s: list[float] = field(default_factory=list)
    num_refused: int = 0
    num_finished: int = 0
    num_preempted: int = 0
    output_tokens: int = 0

    def percentile_s(self, percent: float) -> float:
        """Of the times to the first token; nearest rank."""
        ordered = sorted(self.ttft_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@dataclass(frozen=True, slots=True)
class _Arrival:
    at_s: float
    domain: Domain
    prompt: tuple[int, ...]
    max_tokens: int


def simulate(
    machine: Machine, traffic: Sequence[Traffic], seconds: float, seed: int, quotas: QuotaTable = EMPTY_QUOTAS
) -> dict[str, Outcome]:
    """`drive` on the simulated clock; what a tenant sends depends on the seed and on itself alone."""
    clock = ManualClock(0.0)
    info = digest_model(block_size=BLOCK_SIZE, vocab_size=VOCAB_SIZE, eos_token_ids=())
    engine = Engine(DigestRunner(info, machine.num_blocks, machine.durations, clock.advance), clock, machine.config)
    engine.set_quotas(quotas)
    return drive(engine, clock, clock.advance, traffic, seconds, seed)


def drive(
    engine: Engine,
    clock: Clock,
    sleep: Callable[[float], object],
    traffic: Sequence[Traffic],
    seconds: float,
    seed: int,
) -> dict[str, Outcome]:
    """Sends for `seconds`, and goes on until the first tenant has had all its first tokens; outcomes by tenant."""
    outcomes = {each.tenant: Outcome() for each in traffic}
    pending: dict[RequestKey, tuple[float, str]] = {}
    tenants: dict[RequestKey, str] = {}
    begin_s = clock.monotonic_s()
    arrivals = list(heapq.merge(*(_arrivals(each, seconds, seed) for each in traffic), key=lambda each: each.at_s))
    arrivals.reverse()
    observed = traffic[0].tenant
    while arrivals or any(tenant == observed for _, tenant in pending.values()):
        now_s = clock.monotonic_s() - begin_s
        if not engine.has_work and arrivals and arrivals[-1].at_s > now_s:
            sleep(arrivals[-1].at_s - now_s)
        while arrivals and arrivals[-1].at_s <= clock.monotonic_s() - begin_s:
            arrival = arrivals.pop()
            key = RequestKey(len(arrivals))
            try:
                engine.submit(_request(key, arrival))
            except UnavailableError:
                outcomes[arrival.domain.tenant].num_refused += 1
                continue
            pending[key] = (arrival.at_s, arrival.domain.tenant)
            tenants[key] = arrival.domain.tenant
        outputs = engine.step()
        now_s = clock.monotonic_s() - begin_s
        for output in outputs:
            outcome = outcomes[tenants[output.key]]
            if isinstance(output, Generated):
                outcome.output_tokens += 1
                if output.key in pending:
                    outcome.ttft_s.append(now_s - pending.pop(output.key)[0])
            elif isinstance(output, Finished):
                outcome.num_finished += 1
                outcome.num_preempted += output.preemptions
    engine.check_invariants()
    return outcomes


def _request(key: RequestKey, arrival: _Arrival) -> EngineRequest:
    params = sampling(arrival.max_tokens)
    return EngineRequest(key, arrival.domain, pack(arrival.prompt), params, 1, CacheMode.READ_WRITE)


def _arrivals(traffic: Traffic, seconds: float, seed: int) -> Iterator[_Arrival]:
    chance = random.Random(f"{seed}/{traffic.tenant}")
    domain = make_domain(traffic.tenant)
    at_s = traffic.begin_s
    while True:
        at_s += chance.expovariate(traffic.requests_per_s)
        if at_s >= seconds:
            return
        length = chance.randint(*traffic.prompt_tokens)
        prompt = tuple(chance.randrange(VOCAB_SIZE) for _ in range(length))
        yield _Arrival(at_s, domain, prompt, chance.randint(*traffic.output_tokens))
