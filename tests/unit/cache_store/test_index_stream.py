"""Entries of the stream of changes: what is packed comes back, and nothing else is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.domain import DomainTag
from cache_store.errors import CorruptDataError
from cache_store.events import BlockChange, BlockEvent
from cache_store.index_stream import StreamedChange, pack_events, unpack_events

TAGS = st.binary(min_size=16, max_size=16).map(DomainTag)
DIGESTS = st.integers(0, 5).flatmap(lambda num: st.binary(min_size=16 * num, max_size=16 * num))
EVENTS = st.lists(st.builds(BlockEvent, TAGS, st.integers(0, 9), st.sampled_from(list(BlockChange)), DIGESTS))


@given(EVENTS)
def test_events_come_back_in_order(events: list[BlockEvent]) -> None:
    told = [StreamedChange(event.domain_tag, event.change, event.digests) for event in events]
    assert unpack_events(pack_events(events)) == told


@given(EVENTS.filter(bool), st.data())
def test_an_entry_that_was_cut_inside_an_event_is_refused(events: list[BlockEvent], data: st.DataObject) -> None:
    whole = pack_events(events)
    ends = {len(pack_events(events[:number])) for number in range(len(events) + 1)}
    cut = data.draw(st.integers(1, len(whole) - 1).filter(lambda at: at not in ends))
    with pytest.raises(CorruptDataError, match="stream"):
        unpack_events(whole[:cut])


def test_a_change_of_another_layout_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="none of this layout"):
        unpack_events(b"\x09" + bytes(16) + bytes(4))
