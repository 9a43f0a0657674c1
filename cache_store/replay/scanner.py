"""A tenant that never asks the same thing twice: its prompts fill a cache and bring it nothing."""

from __future__ import annotations

from cache_store.errors import InvalidRequestError
from cache_store.replay.trace import Symbols, Trace, TraceRequest


def scanner_beside(trace: Trace, rate: float) -> Trace:
    """Requests of equal size, evenly over the time of `trace`, with `rate` times as many blocks a second."""
    if not 0 < rate < float("inf"):
        raise InvalidRequestError("scanner", f"a scanner at {rate:g} times a tenant's rate is none; take one above 0")
    if not trace.requests:
        raise InvalidRequestError("scanner", "a scanner needs a tenant with requests, to have its rate")
    num_requests = max(1, round(len(trace.requests) * rate))
    size = max(1, round(trace.num_references / len(trace.requests)))
    start_s, duration_s = trace.requests[0].at_s, trace.duration_s
    symbols = Symbols()
    requests = tuple(
        TraceRequest(
            at_s=start_s + duration_s * number / num_requests,
            session=number,
            prompt_tokens=size * trace.block_tokens,
            output_tokens=1,
            stop="",
            blocks=symbols.fresh(size),
            ends_session=True,
        )
        for number in range(num_requests)
    )
    return Trace(requests, trace.block_tokens)
