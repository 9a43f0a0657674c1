"""Lookups and pins, asked of several workers at once: who answered what, and who did not.

Signs a token per worker, since a token is for one incarnation. Owned by one event loop; holds no state.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from cache_store.domain import Domain
from cache_store.errors import StemcacheError
from cache_store.registry import WorkerRecord
from cache_store.request_token import RequestClaims, sign
from services.router.worker_client import WorkerPool, WorkerStub
from services.tenants.directory import KnownTenant

WAIT_S = 12.0
"""For a worker's answer: it may compute a step before it answers."""

Answer = TypeVar("Answer")
Ask = Callable[[WorkerStub, bytes, float], Awaitable[Answer]]
"""Sends one question, given the token and the seconds to wait."""


@dataclass(frozen=True, slots=True)
class Answers(Generic[Answer]):
    """What came of a question."""

    given: tuple[tuple[WorkerRecord, Answer], ...]
    errors: tuple[StemcacheError, ...]

    def __add__(self, more: Answers[Answer]) -> Answers[Answer]:
        """Both."""
        return Answers(self.given + more.given, self.errors + more.errors)

    @property
    def num_asked(self) -> int:
        """Workers."""
        return len(self.given) + len(self.errors)


class Questioner:
    """Asks workers on behalf of a tenant."""

    def __init__(self, pool: WorkerPool, cluster_key: bytes, token_expiry_s: Callable[[WorkerRecord], float]) -> None:
        """`token_expiry_s`: when a token made now for a worker expires, by that worker's clock."""
        self._pool = pool
        self._cluster_key = cluster_key
        self._token_expiry_s = token_expiry_s

    async def ask(
        self,
        workers: Sequence[WorkerRecord],
        known: KnownTenant,
        domain_of: Callable[[WorkerRecord], Domain],
        question: Ask[Answer],
        timeout_s: float | None,
    ) -> Answers[Answer]:
        """All of them at once, with domains derived by `known`. An error of one is no error of the others."""
        wait_s = WAIT_S if timeout_s is None else max(0.0, min(WAIT_S, timeout_s))

        async def ask_one(worker: WorkerRecord) -> Answer | StemcacheError:
            token = self._token(worker, known, domain_of(worker))
            try:
                return await self._pool.ask(worker, lambda stub: question(stub, token, wait_s))
            except StemcacheError as error:
                return error

        async with asyncio.TaskGroup() as group:
            tasks = [(worker, group.create_task(ask_one(worker))) for worker in workers]
        given: list[tuple[WorkerRecord, Answer]] = []
        errors: list[StemcacheError] = []
        for worker, task in tasks:
            result = task.result()
            if isinstance(result, StemcacheError):
                errors.append(result)
            else:
                given.append((worker, result))
        return Answers(tuple(given), tuple(errors))

    def _token(self, worker: WorkerRecord, known: KnownTenant, domain: Domain) -> bytes:
        claims = RequestClaims(
            domain=domain,
            request_id=uuid.uuid4().hex,
            incarnation=worker.incarnation,
            expires_unix_s=self._token_expiry_s(worker),
            fence_order=known.tenant.fence.order,
            control_generation=known.generation,
            num_revoked_keys=known.num_revoked_keys,
        )
        return sign(self._cluster_key, claims)
