"""Where blocks lie, at a worker's edge: the engine's look as a message, requests by the ids that their callers know.

Nothing leaves but places, counts, request ids and the uuids of tenants. Runs on the worker's event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from stemcache.worker.v1 import block_map_pb2 as pb
from stemcache.worker.v1 import worker_pb2

from cache_store.clock import Clock
from cache_store.domain import TenantId
from cache_store.errors import DeadlineError
from cache_store.index import Incarnation
from cache_store.look_token import verify_look
from cache_store.tier_kind import TierKind
from worker.block_look import BlockLook, Cell, Look, SequenceState
from worker.engine_thread import EngineThread
from worker.requests import RequestKey
from worker.rpc_request import check_protocol_version
from worker.threaded_engine import ThreadedEngine

WAIT_S = 5.0
"""For the step that runs."""

_TIERS = {TierKind.DEVICE: 0, TierKind.HOST: 1, TierKind.DISK: 2}
_NO_NUMBER = 0xFFFFFFFF
_STATES = {
    SequenceState.QUEUED: pb.SequenceBlocks.STATE_QUEUED,
    SequenceState.LOADING: pb.SequenceBlocks.STATE_LOADING,
    SequenceState.PREFILL: pb.SequenceBlocks.STATE_PREFILL,
    SequenceState.DECODE: pb.SequenceBlocks.STATE_DECODE,
}


class LookedAtEngine(ThreadedEngine, Protocol):
    """An engine that says where its blocks are."""

    @property
    def look(self) -> BlockLook:
        """Where they are."""
        ...


@dataclass(frozen=True, slots=True)
class LookIdentity:
    """Who is looked at."""

    incarnation: Incarnation
    cluster_key: bytes
    block_size: int


class LookCalls:
    """Of one worker."""

    def __init__(self, thread: EngineThread[LookedAtEngine], identity: LookIdentity, clock: Clock) -> None:
        self._thread = thread
        self._identity = identity
        self._clock = clock
        self._request_ids: dict[RequestKey, str] = {}

    def began(self, key: RequestKey, request_id: str) -> None:
        """A request has come; `ended` follows."""
        self._request_ids[key] = request_id

    def ended(self, key: RequestKey) -> None:
        """It has gone."""
        del self._request_ids[key]

    async def read(self, request: worker_pb2.ReadBlockMapRequest) -> worker_pb2.ReadBlockMapResponse:
        """Raises UnauthenticatedError, VersionError, and DeadlineError where a step takes long."""
        own = self._identity
        check_protocol_version(request.protocol_version)
        verify_look(own.cluster_key, request.look_token, own.incarnation, self._clock.unix_s())
        wanted = request.request_id
        first = frozenset(key for key, name in self._request_ids.items() if name == wanted) if wanted else frozenset()
        try:
            look = await self._thread.call(lambda engine: engine.look.take(first), WAIT_S)
        except TimeoutError:
            raise DeadlineError(f"a step runs for more than {WAIT_S:g} s; ask again") from None
        return worker_pb2.ReadBlockMapResponse(block_map=self._message(look))

    def _message(self, look: Look) -> pb.BlockMap:
        tenants: dict[TenantId, int] = {}

        def place(tenant: TenantId) -> int:
            return tenants.setdefault(tenant, len(tenants))

        pool = look.pool
        message = pb.BlockMap(
            incarnation=self._identity.incarnation,
            block_size=self._identity.block_size,
            num_blocks=pool.num_blocks,
            states=pool.states,
            owners=pool.tenants,
            generations=pool.uids,
            pool_tenants=[place(each) for each in pool.tenant_names],
            is_complete=look.is_complete,
        )
        for each in look.sequences:
            message.sequences.add(
                request_id=self._request_ids.get(each.key, ""),
                tenant=place(each.tenant),
                samples=each.samples,
                state=_STATES[each.state],
                prompt_tokens=each.prompt_tokens,
                num_tokens=each.num_tokens,
                num_computed=each.num_computed,
                num_cached=each.num_cached,
                table=_table(each.cells),
                copied_from=each.copied_from,
            )
        for line in look.lines:
            message.lines.add(tenant=place(line.tenant), table=_table(line.cells))
        message.tenants.extend(tenants)
        return message


def _table(cells: Iterable[Cell]) -> pb.BlockTable:
    cells = tuple(cells)
    return pb.BlockTable(
        tiers=bytes(_TIERS[each.tier] for each in cells),
        numbers=[_NO_NUMBER if each.number < 0 else each.number for each in cells],
        holders=[each.holders for each in cells],
        uids=[each.uid for each in cells],
        marks=bytes(each.marks for each in cells),
    )
