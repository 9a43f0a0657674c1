"""Makes a plan ready: workloads that fit the model, a way to send for each tenant, a warm model, a primed cache."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from cache_store.errors import UnavailableError
from cache_store.tokens import PackedTokens, count
from services.loadtest.arrivals import Bounds, ClosedLoop
from services.loadtest.backends import Backend, Caller, ServedModel
from services.loadtest.driver import Driver, TenantLoad
from services.loadtest.live import Live
from services.loadtest.own_prefix import OWN_TOKENS, with_own_prefix
from services.loadtest.records import RequestRow
from services.loadtest.run_plan import CacheStart, RunPlan, TenantPlan
from services.loadtest.sessions import Session, Turn, Workload
from services.loadtest.token_source import TokenSource, stable_rng
from services.loadtest.trace_sessions import trace_workload
from services.loadtest.workloads import ModelRoom, WorkloadKind, build

WARMUP_TOKENS, WARMUP_OUTPUT = 256, 4
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Part:
    """A tenant that is ready to send."""

    plan: TenantPlan
    caller: Caller
    load: TenantLoad


async def make_parts(
    plan: RunPlan, backend: Backend, model: ServedModel, pool_tokens: int, stack: AsyncExitStack
) -> list[Part]:
    """One per tenant. `stack` closes their connections. Raises InvalidRequestError where a workload does not fit."""
    alphabet = await backend.alphabet(model)
    room = ModelRoom(model.max_model_len, plan.pool_tokens or pool_tokens)
    own = "" if backend.has_partitions or plan.cache_start is CacheStart.KEEP else uuid.uuid4().hex
    parts = []
    for each in plan.tenants:
        tokens = TokenSource(alphabet, plan.seed, each.tenant)
        if own:
            begun = TokenSource(alphabet, 0, f"{own}/{each.tenant}").fresh(OWN_TOKENS)
            fitting = replace(room, max_model_len=room.max_model_len - OWN_TOKENS)
            workload = with_own_prefix(_workload(each, plan.seed, tokens, fitting), begun)
        else:
            workload = _workload(each, plan.seed, tokens, room)
        caller = Caller(each.tenant, each.api_key, plan.partition)
        target = backend.target(caller, model)
        stack.push_async_callback(target.close)
        rng = stable_rng("arrivals", plan.seed, each.tenant)
        load = TenantLoad(each.tenant, each.weight, workload, each.arrival, each.bounds, target, rng)
        parts.append(Part(each, caller, load))
    return parts


def _workload(each: TenantPlan, seed: int, tokens: TokenSource, room: ModelRoom) -> Workload:
    if each.spec.kind is WorkloadKind.TRACE:
        return trace_workload(each.spec, tokens, room)
    return build(each.spec, tokens, room, stable_rng("lengths", seed, each.tenant))


async def warm_model(plan: RunPlan, backend: Backend, model: ServedModel, part: Part, stop: asyncio.Event) -> None:
    """Sends requests that nothing else shares, past the cache where the server offers that; none is measured.

    Raises UnavailableError with the server's words where none of them succeeds.
    """
    if not plan.num_warmups:
        return
    length = max(1, min(WARMUP_TOKENS, model.max_model_len - WARMUP_OUTPUT))
    tokens = TokenSource(await backend.alphabet(model), plan.seed, f"warm/{uuid.uuid4().hex}")
    sessions = (Session("warm", (Turn((tokens.fresh(length),), WARMUP_OUTPUT),)) for _ in range(plan.num_warmups))
    target = backend.target_past_cache(part.caller, model)
    bounds = Bounds(plan.num_warmups, None)
    try:
        load = replace(part.load, workload=Workload("warm", sessions), bounds=bounds, target=target)
        answers = [each.answer for each in (await _sent(load, stop)).sent]
    finally:
        await target.close()
    if answers and not stop.is_set() and not any(each.completed for each in answers):
        first = answers[0]
        raise UnavailableError(f"no request succeeds: {first.status}: {first.words or first.error}", 1.0)


async def prime(parts: Sequence[Part], stop: asyncio.Event) -> tuple[list[RequestRow], list[tuple[str, PackedTokens]]]:
    """Sends each shared prefix once; the requests, and what was cached by tenant."""
    rows: list[RequestRow] = []
    primed: list[tuple[str, PackedTokens]] = []
    for part in parts:
        prefixes = [each for each in part.load.workload.primes if count(each)]
        if prefixes:
            workload = Workload(part.load.workload.name, _primes(prefixes))
            load = replace(part.load, workload=workload, bounds=Bounds(len(prefixes), None))
            driver = await _sent(load, stop)
            sent = driver.rows([None] * len(driver.sent))
            done = {row.prefix_group for row in sent if row.completed}
            rows += sent
            primed += [(part.plan.tenant, each) for number, each in enumerate(prefixes) if f"p{number}" in done]
    return rows, primed


def _primes(prefixes: Sequence[PackedTokens]) -> Iterator[Session]:
    for number, prefix in enumerate(prefixes):
        yield Session(f"p{number}", (Turn((prefix,), 1),), prefix_group=f"p{number}", prefix_tokens=count(prefix))


async def _sent(load: TenantLoad, stop: asyncio.Event) -> Driver:
    """A few at once, to their end."""
    driver = Driver((replace(load, arrival=ClosedLoop(_AT_ONCE)),), 0.0, Live())
    await driver.run(stop)
    return driver
