"""W3C trace context as far as it is used: the header `traceparent`, read strictly. Pure.

A caller's `tracestate` and baggage are dropped: they may hold any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

HEADER = "traceparent"

Metadata = Iterable[tuple[str, str | bytes]]
"""Of a call."""

_SAMPLED = 1
_FORM = re.compile(r"00-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where a trace is to be gone on with."""

    trace_id: int
    span_id: int
    is_sampled: bool

    def header(self) -> str:
        """As a value of `traceparent`."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"


def parse(value: str) -> TraceContext | None:
    """None for what is no valid header: a trace of its own begins then."""
    match = _FORM.fullmatch(value)
    if match is None:
        return None
    context = TraceContext(int(match["trace"], 16), int(match["span"], 16), bool(int(match["flags"], 16) & _SAMPLED))
    return context if context.trace_id and context.span_id else None


def from_metadata(metadata: Metadata | None) -> TraceContext | None:
    """Of a call; None where it says nothing of a trace, or not what the form wants."""
    value = next((value for name, value in metadata or () if name == HEADER), "")
    return parse(value) if isinstance(value, str) else None
