"""The worker's parts of a traced request: queue, load, prefill and decode, made when it has ended.

Runs on the event loop. Only for requests whose router sent a trace's context.
"""

from __future__ import annotations

from collections.abc import Iterator

from cache_store.telemetry.spans import Phase, SpanSink
from cache_store.telemetry.trace_context import TraceContext
from worker.requests import Finished, Started


def add_spans(sink: SpanSink, parent: TraceContext, end_unix_s: float, started: Started, finished: Finished) -> None:
    """Sends them. `end_unix_s` is when the last token was made."""
    sink.add(parent, list(_phases(end_unix_s, started, finished)))


def _phases(end_unix_s: float, started: Started, finished: Finished) -> Iterator[Phase]:
    first_token_s = end_unix_s - finished.decode_s
    scheduled_s = first_token_s - finished.prefill_s
    cached = started.cached
    yield Phase("queue", scheduled_s - finished.queue_s, scheduled_s)
    if finished.swap_s:  # before it was scheduled, or after a preemption; as one part, where most of it was
        attributes = {"stemcache.cached_tokens.host": cached.host, "stemcache.cached_tokens.disk": cached.disk}
        yield Phase("load", scheduled_s - min(finished.swap_s, finished.queue_s), scheduled_s, attributes)
    yield Phase(
        "prefill",
        scheduled_s,
        first_token_s,
        {
            "gen_ai.usage.input_tokens": started.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": cached.total,
            "stemcache.recomputed_tokens": finished.recomputed_tokens,
        },
    )
    yield Phase(
        "decode",
        first_token_s,
        end_unix_s,
        {"stemcache.preemptions": finished.preemptions, "stemcache.preempted_seconds": finished.preempted_s},
    )
