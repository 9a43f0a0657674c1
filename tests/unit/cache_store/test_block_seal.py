"""A sealed block opens under its own name and key, unchanged, and otherwise not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.block_name import BlockName
from cache_store.block_seal import TAG_BYTES, BlockSeal, head_bytes
from cache_store.errors import CorruptDataError
from cache_store.tokens import PackedTokens
from tests.support.block_names import make_name

SIZE = 64
DATA = bytes(range(SIZE))

names = st.builds(
    BlockName,
    root=st.binary(max_size=40),
    parent=st.binary(max_size=40),
    digest=st.binary(max_size=20),
    tokens=st.binary(max_size=80).map(PackedTokens),
    number=st.integers(0, 2**70),
)


def sealed(seal: BlockSeal, name: BlockName, data: bytes = DATA) -> tuple[bytes, bytearray]:
    body = bytearray(len(data) + TAG_BYTES)
    return seal.seal(name, data, body), body


def opened(seal: BlockSeal, name: BlockName, head: bytes, body: bytes | bytearray, size: int = SIZE) -> bytes:
    target = bytearray(size)
    seal.open(name, head, body, target)
    return bytes(target)


@given(names, st.binary(min_size=1, max_size=200))
def test_any_block_under_any_name_comes_back_as_it_was(name: BlockName, data: bytes) -> None:
    seal = BlockSeal()
    head, body = sealed(seal, name, data)
    assert len(head) == head_bytes(name, len(data))
    assert opened(seal, name, head, body, len(data)) == data


@given(names, names)
def test_it_opens_under_no_other_name(name: BlockName, other: BlockName) -> None:
    seal = BlockSeal()
    head, body = sealed(seal, name)
    if other != name:
        with pytest.raises(CorruptDataError, match="another one"):
            opened(seal, other, head, body)


@pytest.mark.parametrize(
    "change",
    [{"root": b"r"}, {"parent": b"p"}, {"digest": b"d"}, {"tokens": b"t"}, {"number": 1}],
    ids=lambda change: next(iter(change)),
)
def test_each_part_of_the_name_counts(change: dict[str, Any]) -> None:
    seal, name = BlockSeal(), make_name()
    head, body = sealed(seal, name)
    with pytest.raises(CorruptDataError, match="another one"):
        opened(seal, replace(name, **change), head, body)
    assert opened(seal, name, head, body) == DATA


def test_another_domains_key_does_not_open_it() -> None:
    head, body = sealed(BlockSeal(), make_name())
    with pytest.raises(CorruptDataError, match="header"):
        opened(BlockSeal(), make_name(), head, body)


def test_a_head_does_not_fit_another_body_of_the_same_name() -> None:
    seal, name = BlockSeal(), make_name()
    first_head, _ = sealed(seal, name)
    _, second_body = sealed(seal, name)
    with pytest.raises(CorruptDataError, match="body"):
        opened(seal, name, first_head, second_body)


def test_every_bit_counts() -> None:
    seal, name = BlockSeal(), make_name()
    head, body = sealed(seal, name)
    for index in range((len(head) + len(body)) * 8):
        flipped = bytearray(head + body)
        flipped[index // 8] ^= 1 << index % 8
        with pytest.raises(CorruptDataError):
            opened(seal, name, bytes(flipped[: len(head)]), flipped[len(head) :])


def test_every_byte_counts() -> None:
    seal, name = BlockSeal(), make_name()
    head, body = sealed(seal, name)
    for length in range(len(head)):
        with pytest.raises(CorruptDataError):
            opened(seal, name, head[:length], body)
    for length in range(len(body)):
        with pytest.raises(CorruptDataError):
            opened(seal, name, head, body[:length])


def test_no_two_seals_of_a_block_are_equal() -> None:
    seal, name = BlockSeal(), make_name()
    seals = [sealed(seal, name) for _ in range(100)]
    assert len({bytes(body) for _, body in seals}) == len({head[-TAG_BYTES:] for head, _ in seals}) == 100


def test_nothing_in_clear_tells_what_is_cached() -> None:
    name = make_name()
    head, body = sealed(BlockSeal(), name)
    for secret in (name.root, name.parent, name.digest, name.tokens, DATA[:8]):
        assert secret not in head + body
