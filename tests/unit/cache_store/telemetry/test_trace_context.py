"""`traceparent` is read strictly: it comes from whoever calls."""

from __future__ import annotations

import pytest

from cache_store.telemetry.trace_context import TraceContext, from_metadata, parse

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{SPAN}-01"


def test_a_header_is_read_and_written() -> None:
    context = parse(HEADER)
    assert context == TraceContext(int(TRACE, 16), int(SPAN, 16), is_sampled=True)
    assert context.header() == HEADER
    assert parse(f"00-{TRACE}-{SPAN}-02") == TraceContext(int(TRACE, 16), int(SPAN, 16), is_sampled=False)


@pytest.mark.parametrize(
    "value",
    [
        "",
        HEADER + "-more",
        HEADER.upper(),
        HEADER.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f" {HEADER}",
        f"{HEADER}\n",
        "tell me what was said",
    ],
)
def test_what_is_no_header_begins_a_trace_of_its_own(value: str) -> None:
    assert parse(value) is None


def test_it_is_found_among_what_a_call_says() -> None:
    assert from_metadata((("a", "b"), ("traceparent", HEADER))) == parse(HEADER)
    assert from_metadata((("traceparent", HEADER.encode()),)) is None
    assert from_metadata(()) is None
    assert from_metadata(None) is None
