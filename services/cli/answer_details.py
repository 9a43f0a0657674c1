"""What an answer used, where its time went and why it came from where it came, in words, on standard error."""

from __future__ import annotations

import sys

from services.client import Route, RouteDecision, Timings, Usage


def print_details(usage: Usage, timings: Timings, route: Route) -> None:
    """A line for each."""
    lines = [_usage(usage), _times(timings), _place(route)]
    if route.decision is not None:
        lines += _decision(route.decision)
    print("\n".join(lines), file=sys.stderr)


def _usage(usage: Usage) -> str:
    tiers = usage.cached_by_tier
    parts = (
        (tiers.device_tokens, "device"),
        (tiers.host_tokens, "host"),
        (tiers.disk_tokens, "disk"),
        (tiers.peer_tokens, "another worker"),
    )
    found = ", ".join(f"{name} {number}" for number, name in parts if number)
    cached = f"{usage.cached_tokens} cached" + (f" ({found})" if found else "")
    return (
        f"tokens  {usage.prompt_tokens} prompt: {cached}, {usage.computed_tokens} computed; "
        f"{usage.completion_tokens} made; {usage.written_tokens} written to the cache"
    )


def _times(timings: Timings) -> str:
    text = (
        f"times   route {_ms(timings.route_s)}, queue {_ms(timings.queue_s)}, prefill {_ms(timings.prefill_s)}, "
        f"decode {_ms(timings.decode_s)}"
    )
    if timings.swap_s > 0:
        text += f"; waited {_ms(timings.swap_s)} for blocks from elsewhere"
    if timings.preemptions:
        text += (
            f"; preempted {timings.preemptions} times for {_ms(timings.preempted_s)}, "
            f"{timings.recomputed_tokens} tokens computed again in {_ms(timings.recompute_s)}"
        )
    return text


def _place(route: Route) -> str:
    tries = f", try {route.attempts}" if route.attempts > 1 else ""
    return f"route   {route.worker_id}{tries}{', degraded' if route.degraded else ''}"


def _decision(decision: RouteDecision) -> list[str]:
    lines = [f"        {decision.reason}", f"        {decision.reuse}"]
    for each in decision.candidates:
        lines.append(
            f"        {each.worker_id}: {each.matched_tokens} tokens there; cost {_ms(each.cost_s)} = queue "
            f"{_ms(each.queue_s)} + prefill {_ms(each.prefill_s)} + recompute {_ms(each.recompute_s)}"
        )
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
