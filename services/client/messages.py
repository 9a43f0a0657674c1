"""Between the client's values and protobuf messages. Knows nothing of channels."""

from __future__ import annotations

import hashlib
import uuid

from google.protobuf.duration_pb2 import Duration
from stemcache.v1 import inference_pb2 as pb

from cache_store.tokens import pack, unpack
from services.client.requests import CacheHints, CacheMode, Chat, GenerationRequest, Prompt, Sampling, Tokens
from services.client.results import (
    CachedByTier,
    Completion,
    Delta,
    FinishReason,
    Generation,
    GenerationEvent,
    GenerationFinished,
    GenerationStarted,
    ModelCard,
    Route,
    RouteCandidate,
    RouteDecision,
    SampleFinish,
    Timings,
    Usage,
)

_CACHE_MODES = {
    CacheMode.READ_WRITE: pb.CachePolicy.MODE_READ_WRITE,
    CacheMode.READ_ONLY: pb.CachePolicy.MODE_READ_ONLY,
    CacheMode.BYPASS: pb.CachePolicy.MODE_BYPASS,
}

_FINISH_REASONS = {
    pb.FINISH_REASON_UNSPECIFIED: FinishReason.UNFINISHED,
    pb.FINISH_REASON_STOP: FinishReason.STOP,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
}


def generate_message(request: GenerationRequest) -> pb.GenerateRequest:
    """The message of `request`, with an id: a retried call must name the same request.

    So that any router draws the same tokens for it, a seed that is not named follows from the id.
    """
    request_id = request.request_id or uuid.uuid4().hex
    return pb.GenerateRequest(
        request_id=request_id,
        model=request.model,
        prompt=prompt_message(request.prompt),
        sampling_params=_sampling_message(request.sampling, request_id),
        cache_policy=policy_message(request.cache_mode, request.partition, request.hints),
    )


def policy_message(mode: CacheMode, partition: str, hints: CacheHints) -> pb.CachePolicy:
    """What a request may do with the cache."""
    return pb.CachePolicy(
        mode=_CACHE_MODES[mode],
        partition=partition,
        session_id=hints.session_id,
        session_end=hints.session_end,
        no_store=hints.no_store,
        ttl=None if hints.ttl_s is None else duration_message(hints.ttl_s),
    )


def duration_message(seconds: float) -> Duration:
    """The message of a duration. Raises ValueError for one that no message holds."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def prompt_message(prompt: Prompt) -> pb.Prompt:
    """The message of a prompt."""
    match prompt:
        case str():
            return pb.Prompt(text=prompt)
        case Chat():
            messages = [pb.ChatMessage(role=each.role, content=each.content) for each in prompt.messages]
            return pb.Prompt(chat=pb.ChatPrompt(messages=messages))
        case Tokens():
            return pb.Prompt(token_ids=pb.TokenIds(packed=pack(prompt.token_ids)))


def _sampling_message(sampling: Sampling, request_id: str) -> pb.SamplingParams:
    is_drawn = bool(sampling.temperature)
    return pb.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=_seed_of(request_id) if sampling.seed is None and is_drawn else sampling.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        n=sampling.num_samples,
    )


def _seed_of(request_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8, person=b"sc-client-seed").digest(), "big")


def generation_of(message: pb.GenerateResponse) -> Generation:
    """The value of a response."""
    return Generation(
        request_id=message.request_id,
        completions=tuple(completion_of(each) for each in message.completions),
        usage=usage_of(message.usage),
        timings=_timings_of(message.timings),
        route=_route_of(message.route),
        seed=message.seed,
    )


def event_of(message: pb.GenerateStreamResponse) -> GenerationEvent | None:
    """The value of a stream's message; None for an event that this client does not know yet."""
    match message.WhichOneof("event"):
        case "started":
            started = message.started
            return GenerationStarted(
                message.request_id, usage_of(started.usage), _route_of(started.route), started.seed
            )
        case "delta":
            delta = message.delta
            return Delta(message.request_id, delta.sample_index, delta.text, token_ids_of(delta.token_ids))
        case "finished":
            finished = message.finished
            samples = tuple(
                SampleFinish(each.sample_index, _finish_reason_of(each.finish_reason)) for each in finished.samples
            )
            usage, timings = usage_of(finished.usage), _timings_of(finished.timings)
            return GenerationFinished(message.request_id, samples, usage, timings)
        case _:
            return None


def completion_of(message: pb.Completion) -> Completion:
    """The value of a sample."""
    finish_reason = _finish_reason_of(message.finish_reason)
    return Completion(message.sample_index, message.text, token_ids_of(message.token_ids), finish_reason)


def token_ids_of(message: pb.TokenIds) -> tuple[int, ...]:
    """The ids of a packed message."""
    return tuple(unpack(message.packed))


def model_of(message: pb.Model) -> ModelCard:
    """The value of a model."""
    return ModelCard(
        name=message.name,
        block_size=message.block_size,
        max_model_len=message.max_model_len,
        kv_bytes_per_token=message.kv_bytes_per_token,
        vocab_size=message.vocab_size,
        base_model=message.base_model,
    )


def _finish_reason_of(value: pb.FinishReason.ValueType) -> FinishReason:
    return _FINISH_REASONS.get(value, FinishReason.UNKNOWN)


def usage_of(message: pb.Usage) -> Usage:
    """The value of token counts."""
    return Usage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        cached_tokens=message.cached_tokens,
        computed_tokens=message.computed_tokens,
        cached_by_tier=by_tier_of(message.cached_by_tier),
        written_tokens=message.written_tokens,
    )


def by_tier_of(message: pb.CachedByTier) -> CachedByTier:
    """The value of reused tokens by tier."""
    return CachedByTier(message.device_tokens, message.host_tokens, message.disk_tokens, message.peer_tokens)


def _timings_of(message: pb.Timings) -> Timings:
    return Timings(
        receive_unix_s=message.receive_time.ToNanoseconds() / 1e9,
        route_s=message.route_duration.ToNanoseconds() / 1e9,
        queue_s=message.queue_duration.ToNanoseconds() / 1e9,
        prefill_s=message.prefill_duration.ToNanoseconds() / 1e9,
        decode_s=message.decode_duration.ToNanoseconds() / 1e9,
        preemptions=message.preemptions,
        preempted_s=message.preempted_duration.ToNanoseconds() / 1e9,
        recompute_s=message.recompute_duration.ToNanoseconds() / 1e9,
        swap_s=message.swap_duration.ToNanoseconds() / 1e9,
        recomputed_tokens=message.recomputed_tokens,
    )


def _route_of(message: pb.Route) -> Route:
    decision = _decision_of(message.decision) if message.HasField("decision") else None
    return Route(message.worker_id, message.degraded, message.attempts, decision)


def _decision_of(message: pb.RouteDecision) -> RouteDecision:
    return RouteDecision(
        reason=message.reason,
        reuse=message.reuse,
        uncached_tokens=message.uncached_tokens,
        candidates=tuple(
            RouteCandidate(
                worker_id=each.worker_id,
                matched_tokens=each.matched_tokens,
                queue_s=each.queue_s,
                prefill_s=each.prefill_s,
                recompute_s=each.recompute_s,
                cost_s=each.cost_s,
            )
            for each in message.candidates
        ),
    )
