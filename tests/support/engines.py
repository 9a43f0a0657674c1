"""Engines over the token-digest runner for tests, and the outputs of a request in one piece."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from cache_store.adapter_files import AdapterContent
from cache_store.clock import ManualClock
from cache_store.digest import Hasher, xxh3_128
from cache_store.domain import NO_ADAPTER, AdapterDigest, Domain
from cache_store.errors import StemcacheError
from cache_store.groups import CacheGeometry
from cache_store.tokens import pack
from cache_store.transfers import Transfers
from cache_store.usage import CachedTokens
from tests.support.domains import make_domain
from worker.audit_samples import Chance, never
from worker.digest_rule import POISON, ExpectedSample, expected_output
from worker.digest_runner import INSTANT, DigestRunner, Durations, digest_model
from worker.engine import Engine
from worker.engine_config import EngineConfig
from worker.mover import MakeMover
from worker.peers import PeerHint, Peers
from worker.requests import (
    CacheMode,
    EngineOutput,
    EngineRequest,
    Failed,
    Finish,
    Finished,
    Generated,
    RequestKey,
    Started,
)
from worker.runner import ModelInfo, PreparedAdapter, Runner
from worker.sampling import SamplingParams
from worker.step_plan import RowFailure, StepPlan, StepResult

ACME = make_domain("acme")
GLOBEX = make_domain("globex")


def sampling(
    max_tokens: int = 8,
    temperature: float = 0.0,
    seed: int = 7,
    min_tokens: int = 0,
    stop_token_ids: tuple[int, ...] = (),
) -> SamplingParams:
    """Sampling parameters, greedy by default."""
    return SamplingParams(
        temperature=temperature,
        top_p=1.0,
        top_k=0,
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=stop_token_ids,
    )


class RecordingRunner:
    """Passes steps on and keeps their plans. The next with rows raises `error` or loses `failing_row`, if set."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self.plans: list[StepPlan] = []
        self.error: Exception | None = None
        self.failing_row: int | None = None

    @property
    def info(self) -> ModelInfo:
        return self._inner.info

    @property
    def transfers(self) -> Transfers:
        return self._inner.transfers

    @property
    def num_blocks(self) -> int:
        return self._inner.num_blocks

    @property
    def num_slots(self) -> tuple[int, ...]:
        return self._inner.num_slots

    @property
    def num_computed(self) -> int:
        """New tokens of all steps so far."""
        return sum(plan.num_tokens for plan in self.plans)

    def prepare_adapter(self, content: AdapterContent) -> PreparedAdapter:
        return self._inner.prepare_adapter(content)

    def attach_adapter(self, adapter: PreparedAdapter) -> None:
        self._inner.attach_adapter(adapter)

    def detach_adapter(self, adapter: AdapterDigest) -> None:
        self._inner.detach_adapter(adapter)

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        if self.error is not None and plan.rows:
            error, self.error = self.error, None
            self._inner.run(replace(plan, rows=()))  # what moves between tiers was carried out, or some of it
            raise error
        result = self._inner.run(plan)
        if self.failing_row is None:
            return result
        if not plan.rows:
            return result
        lost, self.failing_row = self.failing_row % len(plan.rows), None
        failure = RowFailure("injected")
        outcomes = tuple(failure if i == lost else outcome for i, outcome in enumerate(result.outcomes))
        return replace(result, outcomes=outcomes)


@dataclass(slots=True)
class Answer:
    """What an engine said about one request so far."""

    cached_tokens: int | None = None
    cached: CachedTokens | None = None
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    finishes: dict[int, Finish] = field(default_factory=dict)
    finished: Finished | None = None
    error: StemcacheError | None = None

    @property
    def samples(self) -> tuple[ExpectedSample, ...]:
        """Ended samples by index, comparable with the oracle's."""
        return tuple(ExpectedSample(tuple(self.tokens[i]), self.finishes[i]) for i in sorted(self.finishes))

    @property
    def has_ended(self) -> bool:
        return self.finished is not None or self.error is not None

    def add(self, output: EngineOutput) -> None:
        """Takes one output; asserts that their order is right."""
        assert not self.has_ended, "an output follows the end"
        match output:
            case Started():
                assert self.cached_tokens is None, "started twice"
                self.cached_tokens = output.cached.total
                self.cached = output.cached
            case Generated():
                assert self.cached_tokens is not None, "tokens before the start"
                assert output.sample_index not in self.finishes, "tokens after a sample's end"
                self.tokens[output.sample_index] += output.token_ids
                if output.finish is not None:
                    self.finishes[output.sample_index] = output.finish
            case Finished():
                self.finished = output
            case Failed():
                self.error = output.error


class Bench:
    """An engine over a recording digest runner, with answers by request key."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        window: int | None = None,
        vocab_size: int = 1_000,
        max_model_len: int = 512,
        config: EngineConfig | None = None,
        hasher: Hasher = xxh3_128,
        durations: Durations = INSTANT,
        num_host_blocks: int = 0,
        make_mover: MakeMover | None = None,
        geometry: CacheGeometry | None = None,
        num_slots: tuple[int, ...] | None = None,
        draw: Chance = never,
        peers: Peers | None = None,
    ) -> None:
        """`draw` chooses hits for audits: none by default, all of them where it gives 0."""
        self.clock = ManualClock()
        info = digest_model(
            block_size=block_size,
            window=window,
            geometry=geometry,
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            eos_token_ids=(),
        )
        self.inner = DigestRunner(
            info, num_blocks, durations, self.clock.advance, num_host_blocks, make_mover, num_slots
        )
        self.runner = RecordingRunner(self.inner)
        self.engine = Engine(self.runner, self.clock, config or EngineConfig(), hasher, draw, peers)
        self.answers: dict[RequestKey, Answer] = {}
        self.requests: dict[RequestKey, EngineRequest] = {}
        self._keys = count()

    def submit(
        self,
        prompt: Iterable[int],
        params: SamplingParams | None = None,
        *,
        domain: Domain = ACME,
        num_samples: int = 1,
        mode: CacheMode = CacheMode.READ_WRITE,
        ttl_s: float = math.inf,
        adapter: AdapterDigest = NO_ADAPTER,
        peer: PeerHint | None = None,
    ) -> RequestKey:
        """Submits a request and keeps track of it."""
        key = RequestKey(next(self._keys))
        values = params or sampling()
        request = EngineRequest(
            key, domain, pack(prompt), values, num_samples, mode, ttl_s=ttl_s, adapter=adapter, peer=peer
        )
        self.engine.submit(request)
        self.requests[key] = request
        self.answers[key] = Answer()
        return key

    def cancel(self, key: RequestKey) -> None:
        """Cancels; a later output of the request would find no answer to go to."""
        self.engine.cancel(key)
        if key in self.answers and not self.answers[key].has_ended:
            del self.answers[key]

    def step(self) -> tuple[EngineOutput, ...]:
        """One step, with all invariants checked after it."""
        outputs = self.engine.step()
        for output in outputs:
            self.answers[output.key].add(output)
        self.engine.check_invariants()
        return outputs

    def run_until_idle(self, max_steps: int = 10_000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(max_steps):
            if not self.engine.has_work and not self.engine.num_loading:
                return
            self.step()
        raise AssertionError(f"the engine still works after {max_steps} steps")

    def run_idle(self, max_steps: int = 1_000) -> int:
        """Lets the idle engine do what can wait, with all invariants checked after each step; how many it took."""
        for number in range(max_steps):
            if self.engine.has_work:
                self.step()
            elif self.engine.has_idle_work:
                self.engine.step_idle()
                self.engine.check_invariants()
            else:
                return number
        raise AssertionError(f"the engine is not at rest after {max_steps} steps")

    def answer(
        self,
        prompt: Iterable[int],
        params: SamplingParams | None = None,
        *,
        domain: Domain = ACME,
        num_samples: int = 1,
        mode: CacheMode = CacheMode.READ_WRITE,
        ttl_s: float = math.inf,
        adapter: AdapterDigest = NO_ADAPTER,
        peer: PeerHint | None = None,
    ) -> Answer:
        """Submits one request and runs until everything ended."""
        key = self.submit(
            prompt, params, domain=domain, num_samples=num_samples, mode=mode, ttl_s=ttl_s, adapter=adapter, peer=peer
        )
        self.run_until_idle()
        return self.answers[key]

    def written_slots(self) -> set[tuple[int, int]]:
        """(group, slot) of all slots in which anything stands."""
        return {
            (group, int(slot))
            for group, pool in enumerate(self.inner.pools)
            for slot in (pool != POISON).any(axis=(1, 2)).nonzero()[0]
        }

    def expected(self, key: RequestKey) -> tuple[ExpectedSample, ...]:
        """What the oracle says about a request."""
        request, info = self.requests[key], self.runner.info
        return expected_output(
            info.geometry, info.vocab_size, request.prompt, request.sampling, request.num_samples, request.adapter
        )

    def assert_exact(self, *keys: RequestKey) -> None:
        """The requests ended with exactly the tokens of the oracle."""
        for key in keys:
            assert self.answers[key].error is None
            assert self.answers[key].finished is not None
            assert self.answers[key].samples == self.expected(key)
