"""From a routed message to an engine's request: the checks that need no engine.

The only place where `SamplingParams` of a worker are made. The domain comes from the verified claims of the request
token; no field of the message names a tenant. Knows the proto messages, but no gRPC.
"""

from __future__ import annotations

import math
from typing import Protocol

from stemcache.v1 import inference_pb2
from stemcache.worker.v1 import worker_pb2

from cache_store.domain import NO_ADAPTER, AdapterDigest, FormatDigest
from cache_store.errors import InvalidRequestError, PreconditionError, VersionError
from cache_store.index import Incarnation
from cache_store.registry import PROTOCOL_VERSION
from cache_store.request_token import RequestClaims
from cache_store.tokens import TOKEN_BYTES, PackedTokens
from worker.peers import PeerHint
from worker.requests import CacheMode, EngineRequest, RequestKey
from worker.runner import ModelInfo
from worker.sampling import SamplingParams

MAX_TEMPERATURE = 10.0
MAX_SAMPLES = 16
MAX_STOP_TOKEN_IDS = 128
"""The client's 64 and the model's own end-of-sequence ids."""
MAX_SESSION_ID_BYTES = 128
MAX_ADDRESS_CHARS = 255
MIN_TTL_S = 1
MAX_TTL_S = 30 * 86_400

_CACHE_MODES = {
    inference_pb2.CachePolicy.MODE_UNSPECIFIED: CacheMode.READ_WRITE,
    inference_pb2.CachePolicy.MODE_READ_WRITE: CacheMode.READ_WRITE,
    inference_pb2.CachePolicy.MODE_READ_ONLY: CacheMode.READ_ONLY,
    inference_pb2.CachePolicy.MODE_BYPASS: CacheMode.BYPASS,
}


class AdapterFormats(Protocol):
    """Knows which KV formats are those of adapters."""

    def adapter_of(self, kv_format: FormatDigest) -> AdapterDigest | None:
        """None for a format of no adapter. Raises UnavailableError for one that was let go of."""
        ...


class RoutedMessage(Protocol):
    """What every message of a router carries."""

    @property
    def protocol_version(self) -> int:
        """Of the sender."""
        ...

    @property
    def request_token(self) -> bytes:
        """Who asks."""
        ...


def check_protocol(message: RoutedMessage) -> None:
    """Raises VersionError, which names both versions, where the sender speaks another protocol."""
    check_protocol_version(message.protocol_version)


def check_protocol_version(version: int) -> None:
    """As `check_protocol`."""
    if version != PROTOCOL_VERSION:
        raise VersionError("the worker protocol of this request", version, PROTOCOL_VERSION)


def adapter_of(claims: RequestClaims, model: ModelInfo, formats: AdapterFormats) -> AdapterDigest:
    """The adapter whose KV format the request's domain is of; none for the model's own.

    Raises PreconditionError for a format that this worker never served, UnavailableError for that of an adapter which
    it has let go of: its router will know that soon.
    """
    asked, served = claims.domain.kv_format, model.kv_format.digest()
    if asked == served:
        return NO_ADAPTER
    adapter = formats.adapter_of(asked)
    if adapter is None:
        raise PreconditionError(
            f"the request is for KV format {asked.hex()}, this worker serves {model.name!r} with KV format "
            f"{served.hex()}; weights, adapter, attention, dtype, block size or layout differ, so route it elsewhere"
        )
    return adapter


def packed_prompt(prompt: bytes) -> PackedTokens:
    """Token ids of a message. Raises InvalidRequestError where they are no whole number of tokens."""
    if len(prompt) % TOKEN_BYTES:
        raise InvalidRequestError("prompt", f"{len(prompt)} bytes are no whole number of {TOKEN_BYTES}-byte token ids")
    return PackedTokens(prompt)


def to_engine(
    message: worker_pb2.ExecuteRequest,
    claims: RequestClaims,
    key: RequestKey,
    model: ModelInfo,
    adapter: AdapterDigest = NO_ADAPTER,
) -> EngineRequest:
    """The request as the engine takes it. Raises InvalidRequestError, which names the field.

    What depends on the model's length, the pool or the queue is the engine's to check.
    """
    return EngineRequest(
        key=key,
        domain=claims.domain,
        prompt=packed_prompt(message.prompt),
        sampling=_sampling(message.sampling, model),
        num_samples=_num_samples(message.sampling),
        cache_mode=_cache_mode(message),
        session=_session(message, claims),
        session_end=message.session_end,
        ttl_s=_ttl_s(message),
        adapter=adapter,
    )


def _sampling(message: worker_pb2.TokenSampling, model: ModelInfo) -> SamplingParams:
    _check_ranges(message, model)
    return SamplingParams(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        seed=message.seed,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
    )


def _check_ranges(message: worker_pb2.TokenSampling, model: ModelInfo) -> None:
    if not (math.isfinite(message.temperature) and 0.0 <= message.temperature <= MAX_TEMPERATURE):
        raise InvalidRequestError(
            "sampling.temperature", f"temperature is {message.temperature}; it is 0 (greedy) to {MAX_TEMPERATURE:g}"
        )
    if not 0.0 < message.top_p <= 1.0:  # False for NaN
        raise InvalidRequestError("sampling.top_p", f"top_p is {message.top_p}; it is above 0 and at most 1")
    if message.max_tokens < 1:
        raise InvalidRequestError("sampling.max_tokens", "max_tokens is 0; at least 1 token is made")
    if message.min_tokens > message.max_tokens:
        raise InvalidRequestError(
            "sampling.min_tokens", f"min_tokens {message.min_tokens} is above max_tokens {message.max_tokens}"
        )
    _check_stop_ids(message, model)


def _check_stop_ids(message: worker_pb2.TokenSampling, model: ModelInfo) -> None:
    if len(message.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequestError(
            "sampling.stop_token_ids",
            f"{len(message.stop_token_ids)} stop token ids; at most {MAX_STOP_TOKEN_IDS} are taken",
        )
    if max(message.stop_token_ids, default=0) >= model.vocab_size:
        raise InvalidRequestError(
            "sampling.stop_token_ids",
            f"stop token id {max(message.stop_token_ids)} is outside the vocabulary of {model.name!r}: 0 to "
            f"{model.vocab_size - 1}",
        )


def _num_samples(message: worker_pb2.TokenSampling) -> int:
    if not 1 <= message.n <= MAX_SAMPLES:
        raise InvalidRequestError("sampling.n", f"n is {message.n}; it is 1 to {MAX_SAMPLES}")
    return message.n


def _cache_mode(message: worker_pb2.ExecuteRequest) -> CacheMode:
    mode = _CACHE_MODES.get(message.cache_mode)
    if mode is None:
        raise InvalidRequestError("cache_mode", f"cache mode {message.cache_mode} is unknown; this build knows 0 to 3")
    return mode


def _session(message: worker_pb2.ExecuteRequest, claims: RequestClaims) -> bytes:
    """Names the session over all domains: the same id in another partition is another session."""
    session = message.session_id.encode()
    if len(session) > MAX_SESSION_ID_BYTES:
        raise InvalidRequestError("session_id", f"session_id has {len(session)} bytes; at most {MAX_SESSION_ID_BYTES}")
    return claims.domain.tag + session if session else b""


def _ttl_s(message: worker_pb2.ExecuteRequest) -> float:
    if not message.HasField("ttl"):
        return math.inf
    seconds = message.ttl.seconds + message.ttl.nanos / 1e9
    if not MIN_TTL_S <= seconds <= MAX_TTL_S:
        raise InvalidRequestError("ttl", f"ttl is {seconds:g} s; it is {MIN_TTL_S} to {MAX_TTL_S} s")
    return seconds


def peer_of(message: worker_pb2.ExecuteRequest, claims: RequestClaims, now_unix_s: float) -> PeerHint | None:
    """The other worker that may have more of the prompt; this one itself is none. Raises InvalidRequestError."""
    if not message.HasField("peer") or message.peer.incarnation == claims.incarnation:
        return None
    return peer_hint(message.peer, claims, now_unix_s)


def peer_hint(hint: worker_pb2.PeerHint, claims: RequestClaims, now_unix_s: float) -> PeerHint:
    """The value of a hint that came now, by this worker's clock. Raises InvalidRequestError."""
    if not 1 <= len(hint.address) <= MAX_ADDRESS_CHARS:
        raise InvalidRequestError("peer.address", f"an address has 1 to {MAX_ADDRESS_CHARS} characters")
    return PeerHint(
        address=hint.address,
        incarnation=Incarnation(hint.incarnation),
        num_blocks=hint.block_count,
        fence_order=claims.fence_order,
        control_generation=claims.control_generation,
        clock_ahead_s=hint.clock_time.ToNanoseconds() / 1e9 - now_unix_s if hint.HasField("clock_time") else 0.0,
    )
