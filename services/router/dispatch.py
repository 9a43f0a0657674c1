"""Runs one planned request on a worker, and on another one where the first is lost.

Before the first token it begins anew. After it another worker goes on with what was sent
(`services/router/carried.py`): no token is repeated and none is left out. Owns no state beyond a request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog
from stemcache.worker.v1 import worker_pb2

from cache_store.clock import Clock
from cache_store.digest import DIGEST_BYTES
from cache_store.domain import FormatDigest
from cache_store.errors import DeadlineError, InvalidRequestError, LeavingError, UnavailableError, WorkerLostError
from cache_store.index import Incarnation
from cache_store.registry import RENEW_S, WorkerRecord
from cache_store.tokens import TOKEN_BYTES, count, unpack
from services.router.answer import Answer
from services.router.attempt import Attempt, Job, Signer, Target
from services.router.carried import Carried, DivergedError
from services.router.detokenizer import PROMPT_TAIL_TOKENS
from services.router.generation import CacheMode, GenerationEvent, Started, Take
from services.router.messages import timestamp
from services.router.peer_hints import find_peer, others_have_more
from services.router.records import Routed
from services.router.registry_view import RegistryView
from services.router.routing import RouteChoice, RouteRequest, RouteRule, choose
from services.router.speculations import Speculation, Speculations
from services.router.tokenizers import Tokenizers
from services.router.worker_client import WorkerPool

MAX_ATTEMPTS = 4
"""In all: a request that ends its worker is not to end them all. Who is away already is not tried."""

MAX_REFUSALS = 2
"""Before the first token: where two workers are full, a third is likely to be full, too."""

CERTAINTY = 2.0
"""A deadline is given up where even a worker that much faster than it was measured would miss it."""

_log = structlog.get_logger()


class Dispatcher:
    """Chooses a worker, tries it, and then others."""

    def __init__(
        self,
        pool: WorkerPool,
        view: RegistryView,
        tokenizers: Tokenizers,
        cluster_key: bytes,
        clock: Clock,
        speculations: Speculations,
    ) -> None:
        self._pool = pool
        self._view = view
        self._tokenizers = tokenizers
        self._cluster_key = cluster_key
        self._clock = clock
        self._speculations = speculations

    async def run(self, job: Job, take: Take) -> None:
        """Gives the events of the request.

        Raises WorkerLostError where workers are lost after the first token and no other one can go on, UnavailableError
        where those tried are lost or full before it, and what the worker says otherwise.
        """
        tried: frozenset[Incarnation] = frozenset()
        retry_after_s = RENEW_S
        carried = self._carried(job)
        kv_format: FormatDigest | None = None
        num_refusals = num_lost = 0
        silent = set[Incarnation]()
        while len(tried) < MAX_ATTEMPTS and (carried.has_begun or num_refusals < MAX_REFUSALS):
            choose_next = partial(self._choose, job, carried, kv_format)
            choice = await self._there(choose_next, tried, silent) if num_lost else choose_next(tried)
            if choice is None:
                break
            self._note_route(job, choice, carried)
            attempt = self._attempt(job, choice, tried, carried)
            coming = self._expect(job, choice)
            try:
                await attempt.run(self._settling(coming, take))
            except DivergedError:
                raise
            except WorkerLostError:
                num_lost += 1
                self._view.suspect(choice.worker.incarnation)
                _log_loss(job, choice.worker, carried)
                if carried.answer.has_ended:
                    take(attempt.finished())
                    return
            except LeavingError:
                self._view.note_leaving(choice.worker.incarnation)
                continue  # it has not tried: nobody asks it again
            except UnavailableError as error:
                if choice.rule is RouteRule.AFFINITY and not carried.has_begun:
                    raise  # others may have filled it; to go elsewhere would let them decide what hits
                retry_after_s = max(retry_after_s, error.retry_after_s)
                num_refusals += 1
            else:
                return
            finally:
                self._withdraw(coming)  # whatever ended it: what was settled stays
            tried |= {choice.worker.incarnation}
            if carried.has_begun:
                kv_format = choice.worker.kv_format  # another one could make other tokens
        if carried.has_begun:
            raise WorkerLostError("the worker was lost while it answered, and no other one could go on")
        raise UnavailableError("the workers that were asked could not take the request", retry_after_s)

    def _expect(self, job: Job, choice: RouteChoice) -> Speculation | None:
        """The prompt's blocks will be where it is sent, if they are stored; of those that are there the index knows."""
        held = job.plan.held_blocks.get(choice.worker.incarnation, 0)
        digests = job.plan.chains.get(choice.worker.kv_format, b"")[held * DIGEST_BYTES :]
        if not digests or job.plan.cache_mode is not CacheMode.READ_WRITE:
            return None
        domain = job.plan.domains[choice.worker.kv_format]
        delay_s = choice.terms[0].queue_s + choice.terms[0].prefill_s
        return self._speculations.add(domain.tenant, domain.tag, choice.worker.incarnation, digests, delay_s)

    def _settling(self, coming: Speculation | None, take: Take) -> Take:
        """`take`, and the first token settles what is coming."""
        if coming is None:
            return take

        def settle(event: GenerationEvent) -> None:
            if isinstance(event, Started):
                self._speculations.settle(coming)
            take(event)

        return settle

    def _withdraw(self, coming: Speculation | None) -> None:
        if coming is not None:
            self._speculations.withdraw(coming)

    def _choose(
        self, job: Job, carried: Carried, kv_format: FormatDigest | None, excluded: frozenset[Incarnation]
    ) -> RouteChoice | None:
        """None where nobody is left to try again on. `kv_format` None: any."""
        request = RouteRequest(
            model=job.plan.model.name,
            prompt_tokens=count(job.plan.prompt) + carried.num_done,
            max_tokens=job.plan.max_tokens - carried.num_done,
            num_samples=job.spec.sampling.n,
            excluded=excluded,
            part=job.plan.part,
            affinity=job.plan.affinity,
            prompt_affinity=job.plan.prompt_affinity,
            is_strict=job.plan.part.share.is_strict,
            heat=job.plan.heat,
        )
        formats = job.plan.domains if kv_format is None else (kv_format,)
        served = job.plan.model.views(self._view.snapshot())
        views = [view for view in served if view.record.kv_format in formats]
        try:
            return choose(views, job.plan.matched_tokens, request)
        except (UnavailableError, InvalidRequestError):
            if excluded:
                return None
            raise

    async def _there(
        self,
        choose_next: Callable[[frozenset[Incarnation]], RouteChoice | None],
        tried: frozenset[Incarnation],
        silent: set[Incarnation],
    ) -> RouteChoice | None:
        """The choice among workers that say that they are there: with the one that was lost others may have gone.

        Who does not say so is suspected, and `silent`: no attempt is lost on it as long as there is anybody else,
        suspected or not, and it is not asked again.
        """
        while (choice := choose_next(tried | silent)) is not None:
            if await self._pool.is_there(choice.worker):
                return choice
            silent.add(choice.worker.incarnation)
            self._view.suspect(choice.worker.incarnation)
        return choose_next(tried)

    def _note_route(self, job: Job, choice: RouteChoice, carried: Carried) -> None:
        """Raises DeadlineError."""
        now_s = self._clock.monotonic_s()
        prompt_tokens = count(job.plan.prompt) + carried.num_done
        route_s, heat = now_s - job.receive_s, job.plan.heat
        job.record.add(Routed(prompt_tokens, choice.rule, choice.terms, job.plan.degraded, route_s, heat))
        _require_time(choice, job.deadline_s - now_s)

    def _carried(self, job: Job) -> Carried:
        tokenizer = self._tokenizers.get(job.plan.model.base)
        tail = unpack(job.plan.prompt[-PROMPT_TAIL_TOKENS * TOKEN_BYTES :])
        sampling = job.spec.sampling
        answer = Answer(sampling.n, tokenizer.decode if tokenizer else None, tail, sampling.stop)
        return Carried(answer, sampling.n)

    def _attempt(self, job: Job, choice: RouteChoice, tried: frozenset[Incarnation], carried: Carried) -> Attempt:
        uncached = count(job.plan.prompt) - choice.terms[0].matched_tokens
        assignment = self._view.assign(choice.worker.incarnation, uncached)
        target = Target(choice.worker, self._peer(job, choice, tried), len(tried) + 1)
        signer = Signer(self._cluster_key, self._view.token_expiry_s(choice.worker))
        return Attempt(job, target, assignment, self._pool, carried, signer, self._clock)

    def _peer(self, job: Job, choice: RouteChoice, tried: frozenset[Incarnation]) -> worker_pb2.PeerHint | None:
        """Another worker that has more of the prompt."""
        is_reader = job.plan.cache_mode is CacheMode.READ_WRITE
        if not is_reader or not others_have_more(choice, job.plan.matched_tokens):
            return None
        served = job.plan.model.views(self._view.snapshot())
        peer = find_peer(choice, served, job.plan.matched_tokens, tried)
        if peer is None:
            return None
        return worker_pb2.PeerHint(
            address=peer.worker.address,
            incarnation=peer.worker.incarnation,
            block_count=peer.num_blocks,
            clock_time=timestamp(self._view.clock_unix_s(peer.worker)),
        )


def _require_time(choice: RouteChoice, left_s: float) -> None:
    """Raises DeadlineError where the first token would come too late on the best worker, if it had nothing else to do.

    What it has to do is not counted: the report is up to a second old, and much of it may have been cancelled.
    """
    is_measured = choice.worker.load.prefill_tokens_per_s > 0
    if is_measured and choice.terms[0].prefill_s / CERTAINTY > left_s:
        raise DeadlineError("the deadline cannot be met: the first token would come after it")


def _log_loss(job: Job, worker: WorkerRecord, carried: Carried) -> None:
    _log.warning(
        "request.worker_lost",
        request_id=job.request_id,
        worker_id=worker.worker_id,
        sent_tokens=carried.num_sent,
    )
