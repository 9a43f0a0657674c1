"""From the router's values to the messages of `stemcache.v1`. Holds no state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from stemcache.v1 import cache_pb2
from stemcache.v1 import inference_pb2 as pb

from cache_store.registry import WorkerRecord
from cache_store.tokens import TOKEN_BYTES, count, part
from cache_store.usage import CachedTokens
from services.router import generation as g
from services.router.block_counts import BlockCounts
from services.router.served_models import ServedModel

MAX_PARTIAL_BYTES = 4_000
"""Details of a status travel as metadata, of which clients take 8 KiB, by a third larger than they are."""

_SECOND = 1_000_000_000
"""In nanoseconds."""

_FINISH = {
    None: pb.FINISH_REASON_UNSPECIFIED,
    g.FinishReason.STOP: pb.FINISH_REASON_STOP,
    g.FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    g.FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
}


def token_ids(packed: bytes) -> pb.TokenIds:
    """Packed tokens as they travel."""
    return pb.TokenIds(packed=packed)


def duration(seconds: float) -> Duration:
    """A duration of at least zero."""
    nanoseconds = max(0, round(seconds * 1e9))
    return Duration(seconds=nanoseconds // _SECOND, nanos=nanoseconds % _SECOND)


def timestamp(unix_s: float) -> Timestamp:
    """A point in time."""
    nanoseconds = round(unix_s * 1e9)
    return Timestamp(seconds=nanoseconds // _SECOND, nanos=nanoseconds % _SECOND)


def blocks_by_tier(counts: BlockCounts) -> cache_pb2.BlocksByTier:
    """Blocks by the tier where they lay."""
    return cache_pb2.BlocksByTier(device_blocks=counts.device, host_blocks=counts.host, disk_blocks=counts.disk)


def completion(sample: g.SampleSoFar) -> pb.Completion:
    """A sample as far as it came."""
    return pb.Completion(
        sample_index=sample.sample_index,
        text=sample.text,
        token_ids=token_ids(sample.tokens),
        finish_reason=_FINISH[sample.finish],
    )


def partial_generation(samples: Sequence[g.SampleSoFar]) -> pb.PartialGeneration:
    """What had been made when a worker was lost, as far as a status can hold it; no sample of it counts as ended."""
    share = MAX_PARTIAL_BYTES // max(1, len(samples))
    message = pb.PartialGeneration(
        completions=[completion(_beginning(sample, share)) for sample in samples],
        completion_tokens=sum(count(sample.tokens) for sample in samples),
    )
    for made in message.completions:
        made.finish_reason = pb.FINISH_REASON_UNSPECIFIED
    return message


def _beginning(sample: g.SampleSoFar, size_bytes: int) -> g.SampleSoFar:
    text = sample.text.encode()
    if len(text) + len(sample.tokens) <= size_bytes:
        return sample
    half = size_bytes // 2
    tokens = part(sample.tokens, 0, half // TOKEN_BYTES)
    return replace(sample, text=text[:half].decode(errors="ignore"), tokens=tokens)


def usage(started: g.Started, completion_tokens: int, written_tokens: int = 0) -> pb.Usage:
    """Token counts."""
    return pb.Usage(
        prompt_tokens=started.prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=started.cached.total,
        computed_tokens=started.prompt_tokens - started.cached.total,
        cached_by_tier=cached_by_tier(started.cached),
        written_tokens=written_tokens,
    )


def cached_by_tier(cached: CachedTokens) -> pb.CachedByTier:
    """Reused tokens by tier."""
    return pb.CachedByTier(
        device_tokens=cached.device, host_tokens=cached.host, disk_tokens=cached.disk, peer_tokens=cached.peer
    )


def timings(values: g.Timings) -> pb.Timings:
    """Server-side times."""
    return pb.Timings(
        receive_time=timestamp(values.receive_unix_s),
        route_duration=duration(values.route_s),
        queue_duration=duration(values.queue_s),
        prefill_duration=duration(values.prefill_s),
        decode_duration=duration(values.decode_s),
        preemptions=values.preemptions,
        preempted_duration=duration(values.preempted_s),
        recompute_duration=duration(values.recompute_s),
        swap_duration=duration(values.swap_s),
        recomputed_tokens=values.recomputed_tokens,
    )


def route(started: g.Started) -> pb.Route:
    """Where it runs: an opaque name, no address and no load."""
    return pb.Route(worker_id=started.worker_id, degraded=started.degraded, attempts=started.attempts)


def started_event(request_id: str, started: g.Started) -> pb.GenerateStreamResponse:
    """First event of a stream."""
    event = pb.GenerationStarted(usage=usage(started, 0), route=route(started), seed=started.seed)
    return pb.GenerateStreamResponse(request_id=request_id, started=event)


def delta_event(request_id: str, piece: g.Piece) -> pb.GenerateStreamResponse:
    """Tokens of one sample."""
    event = pb.GenerationDelta(sample_index=piece.sample_index, text=piece.text, token_ids=token_ids(piece.tokens))
    return pb.GenerateStreamResponse(request_id=request_id, delta=event)


def finished_event(
    request_id: str, started: g.Started, samples: Sequence[g.SampleSoFar], finished: g.Finished
) -> pb.GenerateStreamResponse:
    """Last event of a stream."""
    ends = [pb.SampleFinish(sample_index=s.sample_index, finish_reason=_FINISH[s.finish]) for s in samples]
    event = pb.GenerationFinished(
        samples=ends,
        usage=usage(started, sum(count(s.tokens) for s in samples), finished.written_tokens),
        timings=timings(finished.timings),
    )
    return pb.GenerateStreamResponse(request_id=request_id, finished=event)


def response(
    request_id: str, started: g.Started, samples: Sequence[g.SampleSoFar], finished: g.Finished
) -> pb.GenerateResponse:
    """The whole answer."""
    return pb.GenerateResponse(
        request_id=request_id,
        completions=[completion(sample) for sample in samples],
        usage=usage(started, sum(count(s.tokens) for s in samples), finished.written_tokens),
        timings=timings(finished.timings),
        route=route(started),
        seed=started.seed,
    )


def models(served: Iterable[tuple[ServedModel, WorkerRecord]]) -> list[pb.Model]:
    """What is served, each with a worker that tells its geometry."""
    return [
        pb.Model(
            name=model.name,
            block_size=worker.block_size,
            max_model_len=worker.max_model_len,
            kv_bytes_per_token=worker.kv_bytes_per_token,
            vocab_size=worker.vocab_size,
            base_model="" if model.base == model.name else model.base,
        )
        for model, worker in served
    ]
