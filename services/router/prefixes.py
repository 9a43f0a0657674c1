"""What of a prompt is cached, and pins, over all workers of a router.

The index proposes workers, each worker decides by exact comparison. Pins are kept by workers only: they end with the
worker. An answer that lacks a worker never looks like a whole one: it is UnavailableError. Another tenant's prefixes
and pins are out of reach, since every question carries a domain of the caller's own. Owned by one event loop; holds no
state.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog
from stemcache.worker.v1 import worker_pb2

from cache_store.clock import Clock
from cache_store.domain import Domain, ScopeName
from cache_store.errors import DeadlineError, InvalidRequestError, PreconditionError, UnavailableError, WorkerLostError
from cache_store.index import Incarnation
from cache_store.registry import PROTOCOL_VERSION, RENEW_S, WorkerRecord
from cache_store.tokens import count
from cache_store.usage import CachedTokens
from services.router.generation import CacheMode, GenerationSpec
from services.router.messages import timestamp
from services.router.planning import Plan, Planner
from services.router.registry_view import RegistryView
from services.router.routing import WorkerView
from services.router.worker_client import WorkerStub, cached_tokens
from services.router.worker_questions import Answers, Ask, Questioner
from services.tenants.model import Tenant

MAX_ASKED = 16
"""Workers that are asked about one prompt beside those of which the index promises the whole of it."""

NOTHING_CACHED = "nothing of this prompt is cached in full blocks; warm it first"

NOT_KNOWN = "what they have cached is not known"

_Answer = TypeVar("_Answer")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Lookup:
    """The longest match on any worker."""

    prompt_tokens: int
    matched: CachedTokens
    matched_blocks: int
    """Full ones."""


@dataclass(frozen=True, slots=True)
class PinRecord:
    """A pin over all workers that have it."""

    pin_id: str
    name: str
    model: str
    num_blocks: int
    """On each worker."""
    size_bytes: int
    """Over all workers."""
    expires_unix_s: float
    num_workers: int


class Prefixes:
    """Asks workers about prefixes and pins of tenants."""

    def __init__(self, planner: Planner, view: RegistryView, questioner: Questioner, clock: Clock) -> None:
        self._planner = planner
        self._view = view
        self._questioner = questioner
        self._clock = clock

    async def lookup(self, tenant: Tenant, spec: GenerationSpec, timeout_s: float | None) -> Lookup:
        """What a request would reuse now: nothing where the index or the control data is out of reach."""
        plan = await self._plan(tenant, spec)
        usable = [view.record for view in self._open_workers(plan) if not view.suspected]
        named = [worker for worker in usable if plan.matched_tokens.get(worker.incarnation, 0)]
        answers = await self._look_up(_best_first(named, plan.matched_tokens)[:MAX_ASKED], plan, timeout_s)
        if not answers.given:
            _raise_errors(answers, NOT_KNOWN)
            return Lookup(count(plan.prompt), CachedTokens(), 0)
        worker, matched = max(answers.given, key=lambda given: given[1].total)
        return Lookup(count(plan.prompt), matched, matched.total // worker.block_size)

    async def pin(
        self, tenant: Tenant, spec: GenerationSpec, ttl_s: float, name: str, timeout_s: float | None
    ) -> PinRecord:
        """Pins a prompt's cached full blocks on each worker that holds the longest match.

        Raises PreconditionError where nothing is cached, LimitExceededError, and UnavailableError where that cannot be
        known.
        """
        plan = await self._plan(tenant, spec)
        if plan.cache_mode is CacheMode.BYPASS:
            raise UnavailableError("the control data is too old to pin anything by; try again", RENEW_S)
        holders = await self._holders(plan, timeout_s)
        pin = PinRecord(f"pin-{uuid.uuid4().hex}", name, plan.model.name, 0, 0, self._clock.unix_s() + ttl_s, 0)
        answers = await self._ask(holders, plan, _pin_question(pin, plan), timeout_s)
        longest = max((num_blocks for _, num_blocks in answers.given), default=0)
        if not longest:
            _raise_errors(answers, NOT_KNOWN)
            raise PreconditionError(NOTHING_CACHED)
        shorter = [worker for worker, num_blocks in answers.given if num_blocks < longest]
        await self._ask(shorter, plan, _unpin_question(pin.pin_id), timeout_s)
        for worker, num_blocks in answers.given:
            if num_blocks == longest:
                pin = _on_worker(pin, worker, num_blocks)
        _log.info("prefix.pinned", tenant=tenant.name, num_blocks=pin.num_blocks, num_workers=pin.num_workers)
        return pin

    async def unpin(self, tenant: Tenant, pin_id: str, timeout_s: float | None) -> bool:
        """Ends a pin everywhere; whether there was one. Raises UnavailableError where it may still stand somewhere."""
        answers = await self._ask_everybody(tenant, _unpin_question(pin_id), timeout_s)
        _raise_errors(answers, "the pin may still stand there")
        return any(was_pinned for _, was_pinned in answers.given)

    async def pins(self, tenant: Tenant, timeout_s: float | None) -> tuple[PinRecord, ...]:
        """All pins of the tenant, by their end. Raises UnavailableError where some may be missing."""
        answers = await self._ask_everybody(tenant, _list_question, timeout_s)
        _raise_errors(answers, "its pins are not known")
        merged: dict[str, PinRecord] = {}
        names = self._planner.models.scopes(self._planner.latest(tenant).tenant)
        for worker, response in answers.given:
            for each in response.pins:
                ends_s = each.expire_time.ToNanoseconds() / 1e9
                model = names.get(ScopeName(each.model_scope), worker.model)
                known = merged.get(each.pin_id) or PinRecord(each.pin_id, each.display_name, model, 0, 0, ends_s, 0)
                merged[each.pin_id] = _on_worker(known, worker, each.block_count)
        return tuple(sorted(merged.values(), key=lambda pin: (pin.expires_unix_s, pin.pin_id)))

    async def _plan(self, tenant: Tenant, spec: GenerationSpec) -> Plan:
        plan = await self._planner.plan(tenant, spec)
        longest = max(worker.max_model_len for worker in self._planner.models.workers_of(plan.model))
        if count(plan.prompt) > longest:
            raise InvalidRequestError(
                "prompt", f"the prompt has {count(plan.prompt)} tokens; the model reads at most {longest}"
            )
        return plan

    def _open_workers(self, plan: Plan) -> list[WorkerView]:
        """Workers that requests of the plan could go to."""
        views = plan.model.views(self._view.snapshot())
        return [view for view in views if view.record.kv_format in plan.domains and not view.record.draining]

    async def _holders(self, plan: Plan, timeout_s: float | None) -> list[WorkerRecord]:
        """Workers with the longest match in full blocks on their device.

        The index may not have heard yet of what came or went: where nobody holds the whole prompt by it, or does not
        in truth, workers that it does not name are asked too.
        """
        workers = _best_first([view.record for view in self._open_workers(plan)], plan.matched_tokens)
        whole = [worker for worker in workers if plan.matched_tokens.get(worker.incarnation, 0) >= _full(plan, worker)]
        others = [worker for worker in workers if worker not in whole]
        answers: Answers[CachedTokens] = Answers((), ())
        for asked in (whole, others if plan.degraded else others[:MAX_ASKED]):
            answers += await self._look_up(asked, plan, timeout_s)
            there = [(worker, matched.device) for worker, matched in answers.given]
            if any(matched >= min(_full(plan, worker), count(plan.prompt) - 1) for worker, matched in there):
                break
        found = [(worker, matched.device // worker.block_size) for worker, matched in answers.given if matched.device]
        if not found:
            _raise_errors(answers, NOT_KNOWN)
            raise PreconditionError(NOTHING_CACHED)
        most = max(num_blocks for _, num_blocks in found)
        return [worker for worker, num_blocks in found if num_blocks == most]

    async def _look_up(
        self, workers: Sequence[WorkerRecord], plan: Plan, timeout_s: float | None
    ) -> Answers[CachedTokens]:
        async def question(stub: WorkerStub, token: bytes, wait_s: float) -> CachedTokens:
            message = worker_pb2.LookupPrefixRequest(
                protocol_version=PROTOCOL_VERSION, request_token=token, prompt=plan.prompt
            )
            return cached_tokens((await stub.LookupPrefix(message, timeout=wait_s)).matched_by_tier)

        return await self._ask(workers, plan, question, timeout_s)

    async def _ask(
        self, workers: Sequence[WorkerRecord], plan: Plan, question: Ask[_Answer], timeout_s: float | None
    ) -> Answers[_Answer]:
        return await self._questioner.ask(
            workers, plan.known, lambda worker: plan.domains[worker.kv_format], question, timeout_s
        )

    async def _ask_everybody(self, tenant: Tenant, question: Ask[_Answer], timeout_s: float | None) -> Answers[_Answer]:
        """Every worker of which this router knows, of all models; a worker that went away counts until it is lost."""
        workers = [view.record for view in self._view.snapshot()]
        if not workers:
            raise UnavailableError("no worker is ready yet", RENEW_S)

        known = self._planner.latest(tenant)

        def domain_of(worker: WorkerRecord) -> Domain:
            return known.domain("", worker.model, worker.kv_format)

        return await self._questioner.ask(workers, known, domain_of, question, timeout_s)


def _pin_question(pin: PinRecord, plan: Plan) -> Ask[int]:
    async def question(stub: WorkerStub, token: bytes, wait_s: float) -> int:
        message = worker_pb2.PinPrefixRequest(
            protocol_version=PROTOCOL_VERSION,
            request_token=token,
            prompt=plan.prompt,
            pin_id=pin.pin_id,
            expire_time=timestamp(pin.expires_unix_s),
            display_name=pin.name,
        )
        return (await stub.PinPrefix(message, timeout=wait_s)).block_count

    return question


def _unpin_question(pin_id: str) -> Ask[bool]:
    async def question(stub: WorkerStub, token: bytes, wait_s: float) -> bool:
        message = worker_pb2.UnpinPrefixRequest(protocol_version=PROTOCOL_VERSION, request_token=token, pin_id=pin_id)
        return (await stub.UnpinPrefix(message, timeout=wait_s)).was_pinned

    return question


async def _list_question(stub: WorkerStub, token: bytes, wait_s: float) -> worker_pb2.ListPinsResponse:
    message = worker_pb2.ListPinsRequest(protocol_version=PROTOCOL_VERSION, request_token=token)
    return await stub.ListPins(message, timeout=wait_s)


def _best_first(workers: Sequence[WorkerRecord], matched_tokens: Mapping[Incarnation, int]) -> list[WorkerRecord]:
    return sorted(workers, key=lambda worker: -matched_tokens.get(worker.incarnation, 0))


def _full(plan: Plan, worker: WorkerRecord) -> int:
    """Tokens of the prompt's full blocks; at least one block, so that nothing promised is never all of it."""
    return max(1, count(plan.prompt) // worker.block_size) * worker.block_size


def _on_worker(pin: PinRecord, worker: WorkerRecord, num_blocks: int) -> PinRecord:
    """The pin with one more worker that has it."""
    size_bytes = num_blocks * worker.block_size * worker.kv_bytes_per_token
    return replace(
        pin,
        num_blocks=max(pin.num_blocks, num_blocks),
        size_bytes=pin.size_bytes + size_bytes,
        num_workers=pin.num_workers + 1,
    )


def _raise_errors(answers: Answers[_Answer], consequence: str) -> None:
    """Raises what a worker refused the question for, else UnavailableError where one did not answer."""
    for error in answers.errors:
        if not isinstance(error, UnavailableError | WorkerLostError | DeadlineError):
            raise error
    if answers.errors:
        raise UnavailableError(
            f"{len(answers.errors)} of {answers.num_asked} workers did not answer: {consequence}; try again", RENEW_S
        )
