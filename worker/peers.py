"""Blocks of other workers as an engine sees them: who may have them, what it asks for, what came. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType, Protocol

from cache_store.domain import Domain
from cache_store.fence import FenceOrder
from cache_store.index import Incarnation
from cache_store.tokens import PackedTokens

FetchId = NewType("FetchId", int)
"""Names one fetch of one engine; never reused."""


@dataclass(frozen=True, slots=True)
class PeerHint:
    """Another worker that has the beginning of a prompt, or will have it soon, as a router thinks."""

    address: str
    incarnation: Incarnation
    num_blocks: int
    """Leading ones of the prompt."""
    fence_order: FenceOrder
    """Of the tenant's fence by which the request's domain was derived."""
    control_generation: int
    """Of the control data in which it stood."""
    clock_ahead_s: float = 0.0
    """Of its clock against this worker's: tokens expire by its own."""


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """Blocks to be fetched. Holds nothing of the pool."""

    id: FetchId
    peer: PeerHint
    domain: Domain
    tokens: PackedTokens = field(repr=False)
    """Of the prompt, up to the end of the last block that is wanted."""
    first_block: int
    num_blocks: int
    block_bytes: int
    timeout_s: float
    """What has not come by then is computed."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came of an order."""

    id: FetchId
    blocks: tuple[bytearray, ...] = field(repr=False)
    """Leading ones, each whole and compared with what was asked for."""
    opening_s: float
    """From the question to the first word of the answer; 0 where there was none."""
    transfer_s: float
    """From there to the end, without what the other worker waited for blocks that it was just computing."""
    is_failed: bool
    """It ended before its time: the other worker is away, sent something else, or nothing at all for long."""
    num_refused: int = 0
    """Blocks that were not what was asked for."""
    late_s: float | None = None
    """It is there and sent nothing in so many seconds, or (0) had no place for the question; None: it did."""


class Peers(Protocol):
    """Whoever carries orders out. Called by the engine's thread; returns at once."""

    def order(self, order: FetchOrder) -> None:
        """Starts a fetch. `Exchange.arrived` is told once what came of it, unless it is cancelled before."""
        ...

    def cancel(self, fetch: FetchId) -> None:
        """Nobody wants it any more. Does nothing where it has ended."""
        ...


class NoPeers:
    """`Peers` of an engine that is alone: never asked, since no request has a hint."""

    def order(self, order: FetchOrder) -> None:
        raise AssertionError(f"an engine without peers orders blocks: {order}")

    def cancel(self, fetch: FetchId) -> None:
        raise AssertionError(f"an engine without peers cancels fetch {fetch}")
