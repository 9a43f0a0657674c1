"""The same numbers under the names of vLLM's metrics, so that what reads those reads a worker of ours too. Pure.

Where a meaning differs from ours the name has vLLM's: a cache query is a prompt token, a hit is one that was reused.
"""

from __future__ import annotations

from collections.abc import Iterator

from cache_store.registry import WorkerRecord
from cache_store.telemetry.families import Family, Labels, counter, counters, gauge, histogram
from worker.engine_books import Vitals
from worker.meter import Meter


def vllm_families(record: WorkerRecord, vitals: Vitals, meter: Meter) -> Iterator[Family]:
    """Of one worker, which is one of vLLM's engines."""
    labels: Labels = (("model_name", record.model), ("engine", record.worker_id))
    load = record.load
    held = vitals.held_blocks / vitals.total_blocks
    yield gauge("vllm:num_requests_running", "Requests that run.", load.running_requests, labels)
    yield gauge("vllm:num_requests_waiting", "Requests that wait.", load.waiting_requests, labels)
    yield gauge(
        "vllm:kv_cache_usage_perc", "Held part of the blocks, 0 to 1; what is only cached counts as free.", held, labels
    )
    yield counter("vllm:num_preemptions_total", "Preemptions.", load.pressure.preemptions, labels)
    yield counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up.", meter.prompt_tokens, labels)
    yield counter("vllm:prefix_cache_hits_total", "Prompt tokens reused.", sum(meter.cached_tokens), labels)
    yield counter("vllm:prompt_tokens_total", "Prompt tokens.", meter.prompt_tokens, labels)
    yield counter("vllm:generation_tokens_total", "Tokens made.", meter.generated_tokens, labels)
    finishes = {str(finish): count for finish, count in meter.finishes.items()}
    yield counters("vllm:request_success_total", "Samples that ended, by why.", "finished_reason", finishes, labels)
    yield histogram("vllm:time_to_first_token_seconds", "From arrival to first token.", meter.first_token, labels)
    yield histogram("vllm:inter_token_latency_seconds", "Between two tokens.", meter.token_gap, labels)
    yield histogram("vllm:e2e_request_latency_seconds", "From arrival to end.", meter.request, labels)
    yield histogram("vllm:request_queue_time_seconds", "Waiting.", meter.queue, labels)
    yield histogram("vllm:request_prefill_time_seconds", "From scheduled to first token.", meter.prefill, labels)
    yield histogram("vllm:request_decode_time_seconds", "From first token to end.", meter.decode, labels)
