"""From messages to values: every check that needs neither a model nor a worker, each with what would work.

The only place where `GenerationSpec` is made. Holds no state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
from google.protobuf.duration_pb2 import Duration
from stemcache.v1 import inference_pb2 as pb

from cache_store.errors import InvalidRequestError
from cache_store.tokens import TOKEN_BYTES, PackedTokens
from services.router.generation import (
    CacheHints,
    CacheMode,
    ChatPrompt,
    ChatTurn,
    EndTokens,
    GenerationSpec,
    Prompt,
    Sampling,
    TextPrompt,
    TokenPrompt,
    TurnOpening,
)

MAX_REQUEST_ID_BYTES = 128
MAX_PARTITION_BYTES = 256
MAX_SESSION_ID_BYTES = 128
MIN_TTL_S = 1
MAX_TTL_S = 30 * 86_400
MAX_CHAT_MESSAGES = 4_096
MAX_ROLE_CHARS = 64
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_SAMPLES = 16
MAX_TEMPERATURE = 10.0

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CACHE_MODES: Mapping[int, CacheMode] = {
    pb.CachePolicy.MODE_UNSPECIFIED: CacheMode.READ_WRITE,
    pb.CachePolicy.MODE_READ_WRITE: CacheMode.READ_WRITE,
    pb.CachePolicy.MODE_READ_ONLY: CacheMode.READ_ONLY,
    pb.CachePolicy.MODE_BYPASS: CacheMode.BYPASS,
}


def generation_spec(request: pb.GenerateRequest) -> GenerationSpec:
    """The request as values. Raises InvalidRequestError, which names the field."""
    return GenerationSpec(
        request_id=_request_id(request.request_id) or None,
        model=request.model,
        prompt=prompt_of(request.prompt),
        sampling=_sampling(request.sampling_params),
        cache_mode=_cache_mode(request.cache_policy),
        partition=partition_of("cache_policy.partition", request.cache_policy.partition),
        hints=_hints(request.cache_policy),
    )


def required_request_id(request_id: str) -> str:
    """The id of a request that has to exist."""
    if not request_id:
        raise InvalidRequestError("request_id", "request_id is empty; name the request to end")
    return _request_id(request_id)


def prompt_of(prompt: pb.Prompt) -> Prompt:
    """One of the three forms of a prompt."""
    match prompt.WhichOneof("input"):
        case "token_ids":
            return TokenPrompt(packed_tokens("prompt.token_ids", prompt.token_ids))
        case "text":
            if not prompt.text:
                raise InvalidRequestError("prompt.text", "the text is empty; a prompt has at least one token")
            return TextPrompt(prompt.text)
        case "chat":
            return _chat(prompt.chat)
    raise InvalidRequestError("prompt", "there is no prompt; set one of token_ids, text and chat")


def packed_tokens(field: str, tokens: pb.TokenIds) -> PackedTokens:
    """Token ids that are some, in whole numbers of four bytes."""
    if len(tokens.packed) % TOKEN_BYTES:
        raise InvalidRequestError(
            f"{field}.packed", f"{len(tokens.packed)} bytes are no whole number of token ids of four bytes each"
        )
    if not tokens.packed:
        raise InvalidRequestError(f"{field}.packed", "there are no token ids; at least one is needed")
    return PackedTokens(tokens.packed)


def check_vocabulary(field: str, tokens: PackedTokens, vocab_size: int) -> None:
    """Raises InvalidRequestError where a token id is no token of the model."""
    largest = int(np.frombuffer(tokens, dtype="<u4").max(initial=0))
    if largest >= vocab_size:
        raise InvalidRequestError(
            field, f"token id {largest} is outside the vocabulary; the model's ids are 0 to {vocab_size - 1}"
        )


def partition_of(field: str, partition: str) -> str:
    """The name of a space inside the tenant."""
    size = len(partition.encode())
    if size > MAX_PARTITION_BYTES:
        raise InvalidRequestError(field, f"the partition has {size} bytes; at most {MAX_PARTITION_BYTES}")
    return shown(field, partition)


def ttl_of(field: str, ttl: Duration) -> float:
    """A time to live in seconds."""
    seconds = ttl.seconds + ttl.nanos / 1e9
    if not MIN_TTL_S <= seconds <= MAX_TTL_S:
        raise InvalidRequestError(
            field, f"ttl is {seconds:g} s; it is {MIN_TTL_S} s to {MAX_TTL_S} s ({MAX_TTL_S // 86_400} days)"
        )
    return seconds


def _request_id(request_id: str) -> str:
    size = len(request_id.encode())
    if size > MAX_REQUEST_ID_BYTES:
        raise InvalidRequestError("request_id", f"request_id has {size} bytes; at most {MAX_REQUEST_ID_BYTES}")
    return shown("request_id", request_id)


def shown(field: str, name: str) -> str:
    """A name that may be printed: what moves a terminal's cursor or colours it would speak for us there."""
    if found := _CONTROL.search(name):
        raise InvalidRequestError(
            field, f"{field} has a control character (U+{ord(found[0]):04X} at {found.start()}); leave such out"
        )
    return name


def _cache_mode(policy: pb.CachePolicy) -> CacheMode:
    mode = _CACHE_MODES.get(policy.mode)
    if mode is None:
        raise InvalidRequestError(
            "cache_policy.mode", f"cache mode {policy.mode} is unknown; 0 to {max(_CACHE_MODES)} are known"
        )
    return CacheMode.READ_ONLY if policy.no_store and mode is CacheMode.READ_WRITE else mode


def _hints(policy: pb.CachePolicy) -> CacheHints:
    size = len(policy.session_id.encode())
    if size > MAX_SESSION_ID_BYTES:
        raise InvalidRequestError(
            "cache_policy.session_id", f"session_id has {size} bytes; at most {MAX_SESSION_ID_BYTES}"
        )
    ttl_s = ttl_of("cache_policy.ttl", policy.ttl) if policy.HasField("ttl") else None
    shown("cache_policy.session_id", policy.session_id)
    return CacheHints(policy.session_id, policy.session_end, ttl_s)


def _chat(chat: pb.ChatPrompt) -> ChatPrompt:
    if not chat.messages:
        raise InvalidRequestError("prompt.chat.messages", "the chat has no messages; at least one is needed")
    if len(chat.messages) > MAX_CHAT_MESSAGES:
        raise InvalidRequestError(
            "prompt.chat.messages", f"the chat has {len(chat.messages)} messages; at most {MAX_CHAT_MESSAGES}"
        )
    for at, message in enumerate(chat.messages):
        if not 1 <= len(message.role) <= MAX_ROLE_CHARS:
            raise InvalidRequestError(
                f"prompt.chat.messages[{at}].role",
                f"the role has {len(message.role)} characters; 1 to {MAX_ROLE_CHARS}, as in system, user or assistant",
            )
    opens = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
    turns = tuple(ChatTurn(message.role, message.content) for message in chat.messages)
    return ChatPrompt(turns, TurnOpening.ASSISTANT if opens else TurnOpening.NONE)


def _sampling(params: pb.SamplingParams) -> Sampling:
    max_tokens = params.max_tokens if params.HasField("max_tokens") else None
    return Sampling(
        temperature=_temperature(params),
        top_p=_top_p(params),
        top_k=params.top_k,
        seed=params.seed if params.HasField("seed") else None,
        max_tokens=_max_tokens(max_tokens),
        min_tokens=_min_tokens(params.min_tokens, max_tokens),
        stop=_stop(params),
        stop_token_ids=_stop_token_ids(params),
        end_tokens=EndTokens.IGNORE if params.ignore_eos else EndTokens.STOP,
        n=_samples(params),
    )


def _temperature(params: pb.SamplingParams) -> float:
    value = params.temperature
    if not (math.isfinite(value) and 0.0 <= value <= MAX_TEMPERATURE):
        raise InvalidRequestError(
            "sampling_params.temperature", f"temperature is {value:g}; it is 0 (greedy) to {MAX_TEMPERATURE:g}"
        )
    return value


def _top_p(params: pb.SamplingParams) -> float:
    value = params.top_p if params.HasField("top_p") else 1.0
    if not 0.0 < value <= 1.0:  # also false for NaN
        raise InvalidRequestError("sampling_params.top_p", f"top_p is {value:g}; it is above 0 and at most 1")
    return value


def _max_tokens(value: int | None) -> int | None:
    if value == 0:
        raise InvalidRequestError(
            "sampling_params.max_tokens", "max_tokens is 0; it is at least 1, or absent for what fits"
        )
    return value


def _min_tokens(value: int, max_tokens: int | None) -> int:
    if max_tokens is not None and value > max_tokens:
        raise InvalidRequestError(
            "sampling_params.min_tokens", f"min_tokens is {value}, above max_tokens {max_tokens}; it is at most that"
        )
    return value


def _stop(params: pb.SamplingParams) -> tuple[str, ...]:
    if len(params.stop) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            "sampling_params.stop", f"there are {len(params.stop)} stop strings; at most {MAX_STOP_STRINGS}"
        )
    for at, text in enumerate(params.stop):
        if not 1 <= len(text) <= MAX_STOP_CHARS:
            raise InvalidRequestError(
                f"sampling_params.stop[{at}]", f"the stop string has {len(text)} characters; 1 to {MAX_STOP_CHARS}"
            )
    return tuple(params.stop)


def _stop_token_ids(params: pb.SamplingParams) -> tuple[int, ...]:
    if len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequestError(
            "sampling_params.stop_token_ids",
            f"there are {len(params.stop_token_ids)} stop token ids; at most {MAX_STOP_TOKEN_IDS}",
        )
    return tuple(params.stop_token_ids)


def _samples(params: pb.SamplingParams) -> int:
    n = params.n if params.HasField("n") else 1
    if not 1 <= n <= MAX_SAMPLES:
        raise InvalidRequestError("sampling_params.n", f"n is {n}; it is 1 to {MAX_SAMPLES}")
    return n
