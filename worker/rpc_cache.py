"""Lookups and pins at a worker's gRPC edge: from verified claims and a message to the engine and back.

Token and protocol version have been checked by the caller (`worker/rpc.py`); the tenant is that of the claims. What the
engine does takes microseconds, but it begins between two steps, so that a call may wait for one. Owns no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from google.protobuf import timestamp_pb2
from stemcache.v1 import inference_pb2
from stemcache.worker.v1 import worker_pb2

from cache_store.clock import Clock
from cache_store.domain import Domain
from cache_store.errors import DeadlineError, InvalidRequestError
from cache_store.request_token import RequestClaims
from cache_store.reuse_curves import ReuseCurves
from cache_store.tokens import PackedTokens
from cache_store.usage import CachedTokens
from worker.engine_thread import EngineThread
from worker.pins import PinId, PinRequest, PinTable
from worker.rpc_request import packed_prompt
from worker.threaded_engine import ThreadedEngine

MAX_PIN_ID_BYTES = 128
MAX_NAME_BYTES = 128
MAX_PIN_S = 30 * 86_400
CLOCK_SLACK_S = 60.0
"""By how much the clocks of router and worker may be apart where a pin is to last as long as it may."""

WAIT_S = 10.0
"""For the step that runs."""

_Result = TypeVar("_Result")


class PrefixEngine(ThreadedEngine, Protocol):
    """An engine that can be asked about prefixes."""

    @property
    def pins(self) -> PinTable:
        """Prefixes that are kept from eviction."""
        ...

    @property
    def reuse(self) -> ReuseCurves:
        """How often tenants would hit with more or less room."""
        ...

    def lookup(self, domain: Domain, prompt: PackedTokens) -> CachedTokens:
        """Leading tokens that a request would reuse."""
        ...


class PrefixCalls:
    """The calls about prefixes, over one engine thread."""

    def __init__(self, thread: EngineThread[PrefixEngine], clock: Clock) -> None:
        self._thread = thread
        self._clock = clock

    async def lookup(
        self, message: worker_pb2.LookupPrefixRequest, claims: RequestClaims
    ) -> worker_pb2.LookupPrefixResponse:
        """How much of a prompt a request would reuse now."""
        prompt = packed_prompt(message.prompt)
        matched = await self._ask(lambda engine: engine.lookup(claims.domain, prompt))
        return worker_pb2.LookupPrefixResponse(matched_tokens=matched.total, matched_by_tier=by_tier(matched))

    async def pin(self, message: worker_pb2.PinPrefixRequest, claims: RequestClaims) -> worker_pb2.PinPrefixResponse:
        """Pins what is cached of a prompt; 0 blocks where nothing is. Raises LimitExceededError."""
        request = PinRequest(
            domain=claims.domain,
            pin_id=_pin_id(message.pin_id),
            tokens=packed_prompt(message.prompt),
            expires_unix_s=self._expiry(message.expire_time),
            name=_name(message.display_name),
        )
        num_blocks = await self._ask(lambda engine: engine.pins.pin(request))
        return worker_pb2.PinPrefixResponse(block_count=num_blocks)

    async def unpin(
        self, message: worker_pb2.UnpinPrefixRequest, claims: RequestClaims
    ) -> worker_pb2.UnpinPrefixResponse:
        """Ends a pin; whether there was one."""
        pin_id = _pin_id(message.pin_id)
        was_pinned = await self._ask(lambda engine: engine.pins.unpin(claims.domain, pin_id))
        return worker_pb2.UnpinPrefixResponse(was_pinned=was_pinned)

    async def list(self, claims: RequestClaims) -> worker_pb2.ListPinsResponse:
        """The tenant's pins, those that end first come first."""
        pins = await self._ask(lambda engine: engine.pins.of(claims.domain))
        return worker_pb2.ListPinsResponse(
            pins=[
                worker_pb2.WorkerPin(
                    pin_id=pin.pin_id,
                    display_name=pin.name,
                    block_count=pin.num_blocks,
                    expire_time=_timestamp(pin.expires_unix_s),
                    model_scope=pin.model,
                )
                for pin in pins
            ]
        )

    async def reuse(self, claims: RequestClaims) -> worker_pb2.ReadReuseResponse:
        """How often the tenant would hit with more or less room."""
        tenant = claims.domain.tenant
        points = await self._ask(lambda engine: engine.reuse.points(tenant))
        use = next((each for each in self._thread.load.tenants if each.tenant == tenant), None)
        return worker_pb2.ReadReuseResponse(
            asked_blocks=points.asked_blocks,
            hits_by_bin=points.hits_by_bin,
            found_blocks=points.found_blocks,
            guaranteed_blocks=0 if use is None else use.guaranteed_blocks,
            used_blocks=0 if use is None else use.used_blocks,
        )

    async def _ask(self, function: Callable[[PrefixEngine], _Result]) -> _Result:
        try:
            return await self._thread.call(function, WAIT_S)
        except TimeoutError:
            raise DeadlineError(f"the engine's step has been running for {WAIT_S:g} s") from None

    def _expiry(self, expire_time: timestamp_pb2.Timestamp) -> float:
        expires_s = expire_time.seconds + expire_time.nanos / 1e9
        left_s = expires_s - self._clock.unix_s()
        if not 0 < left_s <= MAX_PIN_S + CLOCK_SLACK_S:
            raise InvalidRequestError(
                "expire_time", f"the pin would end in {left_s:.0f} s; it lasts more than 0 and at most {MAX_PIN_S} s"
            )
        return expires_s


def _pin_id(pin_id: str) -> PinId:
    size = len(pin_id.encode())
    if not 1 <= size <= MAX_PIN_ID_BYTES:
        raise InvalidRequestError("pin_id", f"pin_id has {size} bytes; 1 to {MAX_PIN_ID_BYTES}")
    return PinId(pin_id)


def _name(name: str) -> str:
    size = len(name.encode())
    if size > MAX_NAME_BYTES:
        raise InvalidRequestError("display_name", f"display_name has {size} bytes; at most {MAX_NAME_BYTES}")
    return name


def _timestamp(unix_s: float) -> timestamp_pb2.Timestamp:
    timestamp = timestamp_pb2.Timestamp()
    timestamp.FromNanoseconds(round(unix_s * 1e9))
    return timestamp


def by_tier(cached: CachedTokens) -> inference_pb2.CachedByTier:
    """The message of reused tokens."""
    return inference_pb2.CachedByTier(
        device_tokens=cached.device, host_tokens=cached.host, disk_tokens=cached.disk, peer_tokens=cached.peer
    )
