from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.errors import InvalidRequestError
from cache_store.tokens import common_prefix, count, pack, part, unpack

token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def test_the_wire_form_is_little_endian() -> None:
    assert pack([1, 0x01020304]) == bytes([1, 0, 0, 0, 4, 3, 2, 1])


@given(token_lists)
def test_unpack_is_the_inverse(ids: list[int]) -> None:
    assert unpack(pack(ids)) == ids
    assert count(pack(ids)) == len(ids)


@given(token_lists, st.integers(0, 40), st.integers(0, 40))
def test_part_slices_in_tokens(ids: list[int], start: int, stop: int) -> None:
    assert unpack(part(pack(ids), start, stop)) == ids[start:stop]


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_prefix_counts_equal_leading_tokens(a: list[int], b: list[int]) -> None:
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(pack(a), pack(b)) == expected


def test_broken_lengths_are_refused_with_the_number() -> None:
    with pytest.raises(InvalidRequestError, match="5 bytes"):
        unpack(b"12345")
