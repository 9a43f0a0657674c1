"""One try of a request on one worker: signs the token, streams, translates tokens to pieces, keeps the times.

Owned by the task of the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stemcache.v1 import inference_pb2 as pb
from stemcache.worker.v1 import worker_pb2

from cache_store.clock import Clock
from cache_store.errors import ComputationError, DeadlineError, WorkerLostError
from cache_store.registry import PROTOCOL_VERSION, WorkerRecord
from cache_store.request_token import RequestClaims, sign
from cache_store.tokens import count
from services.router.assignments import Assignment
from services.router.carried import Carried
from services.router.generation import CacheMode, EndTokens, Finished, GenerationSpec, Started, Take, Timings
from services.router.messages import duration
from services.router.planning import Plan
from services.router.records import FirstToken, RequestRecord
from services.router.worker_client import WorkerFinished, WorkerPool, WorkerStarted, WorkerStream, WorkerTokens

_CACHE_MODES = {
    CacheMode.READ_WRITE: pb.CachePolicy.MODE_READ_WRITE,
    CacheMode.READ_ONLY: pb.CachePolicy.MODE_READ_ONLY,
    CacheMode.BYPASS: pb.CachePolicy.MODE_BYPASS,
}


@dataclass(frozen=True, slots=True)
class Job:
    """A planned request and its times."""

    request_id: str
    spec: GenerationSpec
    plan: Plan
    record: RequestRecord
    receive_unix_s: float
    receive_s: float
    """By the monotonic clock."""
    deadline_s: float
    """By the monotonic clock."""
    num_revoked_keys: Callable[[], int]
    """Of the tenant, as known now: this router's control data are newer than the plan of a request that runs."""
    trace_header: str = ""
    """`traceparent` for the worker; empty: it is not traced."""


@dataclass(frozen=True, slots=True)
class Signer:
    """What the request token is made with."""

    cluster_key: bytes
    expires_unix_s: float
    """By the worker's clock."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a try goes."""

    worker: WorkerRecord
    peer: worker_pb2.PeerHint | None
    """Another worker that has more of the prompt."""
    number: int
    """Of the try, from 1."""


class Attempt:
    """One try."""

    def __init__(
        self,
        job: Job,
        target: Target,
        assignment: Assignment,
        pool: WorkerPool,
        carried: Carried,
        signer: Signer,
        clock: Clock,
    ) -> None:
        """`carried` goes from one try to the next."""
        self._job = job
        self._worker = target.worker
        self._peer = target.peer
        self._number = target.number
        self._assignment = assignment
        self._pool = pool
        self._signer = signer
        self._clock = clock
        self._carried = carried
        self._answer = carried.answer
        self._sent_s = clock.monotonic_s()
        self._admitted: WorkerStarted | None = None
        self._admitted_s = self._sent_s

    async def run(self, take: Take) -> None:
        """Gives what comes: started with the first token of the request, pieces, finished."""
        timeout_s = self._job.deadline_s - self._sent_s
        try:
            if timeout_s <= 0:
                raise DeadlineError("the deadline passed before a worker was asked")
            self._carried.begin()
            header = self._job.trace_header
            with self._pool.execute(self._worker, self._message(), timeout_s, header) as stream:
                await self._translate(stream, take)
        finally:
            self._assignment.end(self._clock.monotonic_s())

    def finished(self) -> Finished:
        """The end of a request whose samples have all ended, where the worker cannot tell it any more."""
        return Finished(self._timings(self._clock.monotonic_s()))

    async def _translate(self, stream: WorkerStream, take: Take) -> None:
        while (event := await stream.next()) is not None:
            if isinstance(event, WorkerStarted):
                self._admitted, self._admitted_s = event, self._clock.monotonic_s()
            elif isinstance(event, WorkerTokens):
                if not self._carried.has_begun:
                    take(self._start())
                fresh = self._carried.take(event)
                if fresh is not None and (piece := self._answer.push(fresh)) is not None:
                    take(piece)
                if self._answer.has_ended and self._answer.is_ahead_of_worker:
                    take(self.finished())
                    return
            else:
                take(Finished(self._reported(event), event.written_tokens))
                return
        raise WorkerLostError("the worker's stream stopped without an end")

    def _start(self) -> Started:
        if self._admitted is None:
            raise ComputationError("the worker sent tokens before it said that it started")
        now_s = self._carried.first_token_s = self._clock.monotonic_s()
        self._assignment.first_token(now_s)
        self._job.record.add(FirstToken(self._worker.worker_id, self._admitted.cached))
        return Started(
            prompt_tokens=count(self._job.plan.prompt),
            cached=self._admitted.cached,
            worker_id=self._worker.worker_id,
            attempts=self._number,
            degraded=self._job.plan.degraded,
            seed=self._job.plan.seed,
            num_samples=self._job.spec.sampling.n,
            timings=self._timings(now_s),
            first_token_s=now_s,
            prefill_tokens_per_s=self._worker.load.prefill_tokens_per_s,
        )

    def _timings(self, now_s: float) -> Timings:
        """As this router saw them, for a request that the worker does not end itself."""
        first_token_s = now_s if self._carried.first_token_s is None else self._carried.first_token_s
        return Timings(
            receive_unix_s=self._job.receive_unix_s,
            route_s=self._sent_s - self._job.receive_s,
            queue_s=self._admitted_s - self._sent_s,
            prefill_s=first_token_s - self._admitted_s,
            decode_s=now_s - first_token_s,
            preemptions=0,
        )

    def _reported(self, end: WorkerFinished) -> Timings:
        return Timings(
            receive_unix_s=self._job.receive_unix_s,
            route_s=self._sent_s - self._job.receive_s,
            queue_s=end.queue_s,
            prefill_s=end.prefill_s,
            decode_s=end.decode_s,
            preemptions=end.preemptions,
            preempted_s=end.preempted_s,
            recompute_s=end.recompute_s,
            swap_s=end.swap_s,
            recomputed_tokens=end.recomputed_tokens,
        )

    def _message(self) -> worker_pb2.ExecuteRequest:
        plan = self._job.plan
        hints = self._job.spec.hints
        return worker_pb2.ExecuteRequest(
            protocol_version=PROTOCOL_VERSION,
            request_token=sign(self._signer.cluster_key, self._claims()),
            prompt=plan.prompt + self._carried.prefix,
            sampling=self._sampling(),
            cache_mode=_CACHE_MODES[plan.cache_mode],
            session_id=hints.session_id,
            session_end=hints.session_end,
            ttl=None if hints.ttl_s is None else duration(hints.ttl_s),
            peer=self._peer,
        )

    def _claims(self) -> RequestClaims:
        known = self._job.plan.known
        return RequestClaims(
            domain=self._job.plan.domains[self._worker.kv_format],
            request_id=self._job.request_id,
            incarnation=self._worker.incarnation,
            expires_unix_s=self._signer.expires_unix_s,
            fence_order=known.tenant.fence.order,
            control_generation=known.generation,
            num_revoked_keys=self._job.num_revoked_keys(),
        )

    def _sampling(self) -> worker_pb2.TokenSampling:
        asked = self._job.spec.sampling
        own_ends = self._worker.eos_token_ids if asked.end_tokens is EndTokens.STOP else ()
        return worker_pb2.TokenSampling(
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k,
            seed=self._job.plan.seed,
            max_tokens=self._job.plan.max_tokens - self._carried.num_done,
            min_tokens=max(0, asked.min_tokens - self._carried.num_done),
            stop_token_ids=[*own_ends, *asked.stop_token_ids],
            n=asked.n,
        )
