"""One run: warm the model, empty the cache, prime it, measure, verify.

The order is what keeps a repeated seed from measuring a warm cache: each run has a partition that nobody has used, or,
where the server has none, begins all prompts with tokens of its own. Owns what runs; one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cache_store.errors import StemcacheError
from cache_store.tokens import PackedTokens, count
from services.client.admin_results import ClusterStatus
from services.loadtest.adding_up import RunFacts, add_up
from services.loadtest.arrivals import ClosedLoop
from services.loadtest.backends import Backend, ServedModel
from services.loadtest.conditions import CacheState, Conditions
from services.loadtest.conditions_of import Found, conditions_of
from services.loadtest.doubts import Evidence, doubts
from services.loadtest.driver import Driver, Sent
from services.loadtest.live import Live
from services.loadtest.preparing import Part, make_parts, prime, warm_model
from services.loadtest.records import RequestRow, ServerSample
from services.loadtest.result import Result
from services.loadtest.run_plan import CacheStart, Priming, RunPlan
from services.loadtest.server_watch import ServerWatch, counters, grown, pool_tokens
from services.loadtest.surroundings import machine_load
from services.loadtest.upper_bound import SentPrompt, cacheable_tokens

DEFAULT_BLOCK = 16
"""Tokens per block where the server does not tell."""


class Screen:
    """What shows a run while it goes on: told each phase, and given what is counted."""

    def __init__(self, phase: Callable[[str], None], follow: Callable[[Live], Awaitable[None]]) -> None:
        """`follow` runs until it is cancelled."""
        self.phase = phase
        self.follow = follow


@dataclass(frozen=True, slots=True)
class Measured:
    """All that came of a run."""

    result: Result
    conditions: Conditions
    rows: tuple[RequestRow, ...]
    prime_rows: tuple[RequestRow, ...]
    samples: tuple[ServerSample, ...]


@dataclass(slots=True)
class _Course:
    """What is known so far."""

    model: ServedModel
    parts: Sequence[Part]
    before: ClusterStatus | None
    cache_state: CacheState = CacheState.UNKNOWN
    primed: Sequence[tuple[str, PackedTokens]] = ()
    prime_rows: Sequence[RequestRow] = ()


class Run:
    """Carries out one plan against one server."""

    def __init__(
        self, plan: RunPlan, backend: Backend, look: Callable[[], ClusterStatus] | None, screen: Screen
    ) -> None:
        """`look` asks the operator's API once and may block; None: it is not asked."""
        self._plan = plan
        self._backend = backend
        self._look = look
        self._screen = screen

    async def measure(self, stop: asyncio.Event) -> Measured:
        """The whole course. Raises StemcacheError where it cannot begin; `stop` ends it early, with what there is."""
        model = await self._backend.model()
        before = await asyncio.to_thread(self._look) if self._look else None
        async with AsyncExitStack() as stack:
            parts = await make_parts(self._plan, self._backend, model, pool_tokens(before) if before else 0, stack)
            course = _Course(model, parts, before)
            self._screen.phase("warming the model")
            await warm_model(self._plan, self._backend, model, parts[0], stop)
            await self._empty(course)
            if self._plan.priming is Priming.PREFIXES:
                self._screen.phase("priming the cache")
                course.prime_rows, course.primed = await prime(parts, stop)
            if course.primed and course.cache_state in (CacheState.FRESH, CacheState.PURGED):
                course.cache_state = CacheState.PRIMED
            self._screen.phase("measuring")
            measured = await self._measured(course, stop)
            if self._plan.cache_start is CacheStart.FRESH and self._backend.has_partitions:
                self._screen.phase("forgetting what was cached")
                measured = await self._forgotten(measured, parts)
            return measured

    async def _empty(self, course: _Course) -> None:
        match self._plan.cache_start:
            case CacheStart.FRESH:
                course.cache_state = CacheState.FRESH
            case CacheStart.PURGE:
                self._screen.phase("emptying the cache")
                await self._purge(course.parts)
                course.cache_state = CacheState.PURGED
            case CacheStart.KEEP:
                course.cache_state = CacheState.KEPT

    async def _forgotten(self, measured: Measured, parts: Sequence[Part]) -> Measured:
        """Nobody will ask for it again. What was measured stays, also where the system is not there any more."""
        try:
            await self._purge(parts)
        except StemcacheError as error:
            note = f"what the run wrote is still cached, in partition {self._plan.partition}: {error}"
            warnings = (*measured.result.warnings, note)
            return replace(measured, result=replace(measured.result, warnings=warnings))
        return measured

    async def _purge(self, parts: Sequence[Part]) -> None:
        for part in parts:
            await self._backend.purge(part.caller)

    async def _measured(self, course: _Course, stop: asyncio.Event) -> Measured:
        live = Live()
        driver = Driver([part.load for part in course.parts], self._plan.drain_s, live)
        watch = ServerWatch(self._look, driver.now_s, self._plan.sample_s, self._labels()) if self._look else None
        load_before = await asyncio.to_thread(machine_load)
        first = await watch.look() if watch else None
        followers = [asyncio.ensure_future(self._screen.follow(live))]
        followers += [asyncio.create_task(watch.run())] if watch else []
        start_unix_s, cpu_s = time.time(), time.process_time()
        try:
            duration_s = await driver.run(stop)
            cpu_s = time.process_time() - cpu_s
        finally:
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
        last = await watch.sample() if watch else None
        load_after = await asyncio.to_thread(machine_load)
        rows = driver.rows(self._bounds(driver.sent, course))
        found = Found(course.model, course.before, course.cache_state, round(start_unix_s, 6), load_before, load_after)
        conditions = conditions_of(self._plan, self._backend, found)
        delta = grown(counters(first), counters(last)) if first and last else {}
        warnings = self._warnings(course, rows, driver, cpu_s / max(duration_s, 1e-9), conditions, delta)
        if watch and watch.failed_looks:
            warnings += (f"the operator's API did not answer {watch.failed_looks} times: samples are missing",)
        facts = self._facts(course, driver, duration_s, start_unix_s, delta, warnings)
        samples = tuple(watch.samples) if watch else ()
        return Measured(add_up(rows, facts), conditions, tuple(rows), tuple(course.prime_rows), samples)

    def _labels(self) -> dict[str, str]:
        return {each.server_name: each.tenant for each in self._plan.tenants}

    def _bounds(self, sent: Sequence[Sent], course: _Course) -> Sequence[int | None]:
        if course.cache_state in (CacheState.KEPT, CacheState.UNKNOWN):
            return [None] * len(sent)
        prompts = [
            SentPrompt(each.load.tenant, each.sent_s, each.end_s, each.parts, each.answer.packed) for each in sent
        ]
        return cacheable_tokens(prompts, course.primed, course.model.block_size or DEFAULT_BLOCK)

    def _warnings(
        self,
        course: _Course,
        rows: Sequence[RequestRow],
        driver: Driver,
        cpu_share: float,
        conditions: Conditions,
        delta: Mapping[str, float],
    ) -> tuple[str, ...]:
        evidence = Evidence(
            rows=rows,
            cache_state=course.cache_state,
            open_loop=any(not isinstance(each.arrival, ClosedLoop) for each in self._plan.tenants),
            miscounted=sum(_miscounted(each) for each in driver.sent),
            client_cpu_share=cpu_share,
            load_before=conditions.load_before,
            cores=conditions.machine.cores,
            server_prompt_tokens=delta.get("prompt_tokens", 0.0),
        )
        notes = [note for part in course.parts for note in part.load.workload.notes]
        return (*notes, *doubts(evidence))

    def _facts(
        self,
        course: _Course,
        driver: Driver,
        duration_s: float,
        start_unix_s: float,
        delta: dict[str, float],
        warnings: tuple[str, ...],
    ) -> RunFacts:
        plan = self._plan
        return RunFacts(
            date=datetime.fromtimestamp(start_unix_s, UTC).strftime("%Y%m%d-%H%M%S"),
            backend=self._backend.name,
            model_id=course.model.name,
            workload=plan.workload,
            num_prompts=plan.num_prompts or len(driver.sent),
            request_rate=plan.request_rate,
            burstiness=plan.burstiness,
            max_concurrency=plan.max_concurrency,
            interrupted=driver.interrupted,
            duration_s=duration_s,
            percentiles=plan.percentiles,
            goodput_ms=plan.goodput_ms,
            weights={each.tenant: each.weight for each in plan.tenants},
            server_delta=delta,
            warnings=warnings,
        )


def _miscounted(sent: Sent) -> bool:
    told = sent.answer.prompt_tokens
    return bool(told) and told != sum(map(count, sent.parts))
