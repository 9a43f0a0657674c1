"""What a tenant's cache hits would be with more or less room, from the curves that workers keep of it.

Quotas are shares of every worker's blocks, and each worker follows what reaches it: its hits and what it was asked for,
at the size that a share has there, are added up over workers. Owned by one event loop; holds no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stemcache.worker.v1 import worker_pb2

from cache_store.domain import Domain
from cache_store.errors import UnavailableError
from cache_store.registry import PROTOCOL_VERSION, RENEW_S, WorkerRecord
from cache_store.reuse_curve import CurvePoints
from services.router.registry_view import RegistryView
from services.router.worker_client import WorkerStub
from services.router.worker_questions import Questioner
from services.tenants.directory import TenantDirectory
from services.tenants.model import Tenant

FACTORS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 4.0)
"""Of the room that a tenant has now."""

ENOUGH = 0.95
"""Of what all blocks would bring."""

STEPS = 400
"""Shares that are tried to find where that is reached."""


@dataclass(frozen=True, slots=True)
class WorkerCurve:
    """A tenant on one worker."""

    total_blocks: int
    """Of the worker's device."""
    guaranteed_blocks: int
    used_blocks: int
    curve: CurvePoints


@dataclass(frozen=True, slots=True)
class AdvicePoint:
    """One size."""

    share: float
    """Of every worker's blocks."""
    num_blocks: int
    """Over all workers."""
    hit_share: float
    """Of the blocks of its prompts."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Of one tenant."""

    base: AdvicePoint
    """What it is guaranteed; what it has now, where that is nothing."""
    is_guaranteed: bool
    """Whether `base` is what it is guaranteed."""
    used_share: float
    """That it has now."""
    points: tuple[AdvicePoint, ...]
    """By size, those of FACTORS of `base` that there can be, and all blocks."""
    enough: AdvicePoint
    """The least room that brings ENOUGH of what all blocks would."""
    found_share: float
    """Of the blocks of its prompts, those that were there with the room that it had, in the order that is in force."""
    asked_blocks: float
    """Blocks of prompts behind this, those of late counting more."""
    num_workers: int
    num_missing: int
    """Workers that did not answer."""


class QuotaAdvisor:
    """Asks workers for their curves."""

    def __init__(self, directory: TenantDirectory, view: RegistryView, questioner: Questioner) -> None:
        self._directory = directory
        self._view = view
        self._questioner = questioner

    async def advise(self, tenant: Tenant) -> Advice:
        """Raises UnavailableError where no worker answers."""
        known = self._directory.latest(tenant)

        def domain_of(worker: WorkerRecord) -> Domain:
            return known.domain("", worker.model, worker.kv_format)

        workers = [view.record for view in self._view.snapshot()]
        answers = await self._questioner.ask(workers, known, domain_of, _question, None)
        if not answers.given:
            raise UnavailableError("no worker answers; try again", RENEW_S)
        curves = [_curve(worker, response) for worker, response in answers.given]
        return advice_of(curves, len(answers.errors))


def advice_of(curves: Sequence[WorkerCurve], num_missing: int) -> Advice:
    """Adds up what at least one worker says."""
    total = sum(each.total_blocks for each in curves)
    guaranteed, used = (
        sum(each.guaranteed_blocks for each in curves) / total,
        sum(each.used_blocks for each in curves) / total,
    )
    base = guaranteed or used
    shares = sorted({min(1.0, factor * base) for factor in FACTORS if base} | {1.0})
    most = _point(curves, 1.0).hit_share
    asked = sum(each.curve.asked_blocks for each in curves)
    found = sum(each.curve.found_blocks for each in curves)
    tried = (_point(curves, step / STEPS) for step in range(1, STEPS + 1))
    return Advice(
        base=_point(curves, base),
        is_guaranteed=guaranteed > 0,
        used_share=used,
        points=tuple(_point(curves, share) for share in shares),
        enough=next(point for point in tried if point.hit_share >= ENOUGH * most),
        found_share=found / asked if asked else 0.0,
        asked_blocks=asked,
        num_workers=len(curves),
        num_missing=num_missing,
    )


def _point(curves: Sequence[WorkerCurve], share: float) -> AdvicePoint:
    asked = sum(each.curve.asked_blocks for each in curves)
    hits = sum(each.curve.asked_blocks * each.curve.hit_share(share * each.total_blocks) for each in curves)
    num_blocks = round(sum(share * each.total_blocks for each in curves))
    return AdvicePoint(share, num_blocks, hits / asked if asked else 0.0)


def _curve(worker: WorkerRecord, response: worker_pb2.ReadReuseResponse) -> WorkerCurve:
    return WorkerCurve(
        total_blocks=max(1, worker.num_blocks),
        guaranteed_blocks=response.guaranteed_blocks,
        used_blocks=response.used_blocks,
        curve=CurvePoints(response.asked_blocks, tuple(response.hits_by_bin), response.found_blocks),
    )


async def _question(stub: WorkerStub, token: bytes, wait_s: float) -> worker_pb2.ReadReuseResponse:
    message = worker_pb2.ReadReuseRequest(protocol_version=PROTOCOL_VERSION, request_token=token)
    return await stub.ReadReuse(message, timeout=wait_s)
