"""What more or less room would bring a tenant, as values."""

from __future__ import annotations

from dataclasses import dataclass

from stemcache.admin.v1 import usage_pb2 as pb


@dataclass(frozen=True, slots=True)
class QuotaPoint:
    """Hits with room of one size."""

    share: float
    """Of every worker's blocks."""
    num_blocks: int
    """Over all workers."""
    hit_share: float
    """Of the blocks of its prompts."""


@dataclass(frozen=True, slots=True)
class QuotaAdvice:
    """Of one tenant."""

    base: QuotaPoint
    """What it is guaranteed; what it has now, where that is nothing."""
    is_guaranteed: bool
    """Whether `base` is what it is guaranteed."""
    used_share: float
    """That it has now."""
    points: tuple[QuotaPoint, ...]
    """By size: parts and multiples of `base`, and all blocks."""
    enough: QuotaPoint
    """The least room that brings 95 % of what all blocks would."""
    found_share: float
    """Of the blocks of its prompts, those that were there with the room that it had, in the order that is in force."""
    asked_blocks: float
    """Blocks of prompts behind this; those of a day ago count half."""
    num_workers: int
    num_missing: int
    """Workers that did not answer."""


def advice_of(message: pb.AdviseQuotaResponse) -> QuotaAdvice:
    """The value of an advice."""
    return QuotaAdvice(
        base=_point(message.base),
        is_guaranteed=message.guaranteed,
        used_share=message.used_share,
        points=tuple(_point(each) for each in message.points),
        enough=_point(message.enough),
        found_share=message.found_share,
        asked_blocks=message.asked_blocks,
        num_workers=message.workers,
        num_missing=message.missing_workers,
    )


def _point(message: pb.QuotaPoint) -> QuotaPoint:
    return QuotaPoint(message.share, message.blocks, message.hit_share)
