from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.encoding import Field, decode, encode
from cache_store.errors import CorruptDataError

fields = st.one_of(st.none(), st.text(), st.binary(), st.integers())
tuples = st.lists(fields, max_size=6).map(tuple)


@given(tuples)
def test_decode_is_the_inverse(values: tuple[Field, ...]) -> None:
    assert decode(encode(*values)) == values


@given(tuples, tuples)
def test_different_tuples_never_alias(a: tuple[Field, ...], b: tuple[Field, ...]) -> None:
    assert (encode(*a) == encode(*b)) == (a == b and [type(x) for x in a] == [type(x) for x in b])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (("a", "b"), ("ab",)),
        (("a", ""), ("a",)),
        (("", "a"), ("a", "")),
        (("a",), (b"a",)),
        (("1",), (1,)),
        (("",), (None,)),
        (("a:b", "c"), ("a", "b:c")),
        (("\u00e9",), ("e\u0301",)),
    ],
)
def test_known_aliases_stay_apart(a: tuple[Field, ...], b: tuple[Field, ...]) -> None:
    assert encode(*a) != encode(*b)


@pytest.mark.parametrize("data", [b"x", b"s\x05" + bytes(7) + b"abc", b"q" + bytes(8), encode("a") + b"i"])
def test_corrupt_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode(data)


def test_integers_that_are_not_shortest_are_refused() -> None:
    data = b"i" + (9).to_bytes(8, "little") + (5).to_bytes(9, "little")
    with pytest.raises(CorruptDataError, match="not canonical"):
        decode(data)
