"""Sealed blocks on their way: what opens is what was asked for, in its order, however it was cut."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from cache_store.domain import Domain
from cache_store.errors import CorruptDataError
from cache_store.index import Incarnation
from cache_store.peer_seal import Exchange, answer_seal, block_names, open_question, seal_question
from cache_store.tokens import PackedTokens, pack
from tests.support.domains import make_domain
from worker.peer_stream import CHUNK_BYTES, BlockAssembler, sealed_chunks

ACME, GLOBEX = make_domain("acme"), make_domain("globex")
BLOCK_SIZE, BLOCK_BYTES = 4, 100_000
TOKENS = pack(range(40))
EXCHANGE = Exchange(Incarnation("holder"), Incarnation("asker"), bytes(32), b"k" * 32)
SALT = b"s" * 32
BLOCKS = [bytearray(secrets.token_bytes(BLOCK_BYTES)) for _ in range(10)]


def stream(domain: Domain = ACME, exchange: Exchange = EXCHANGE, tokens: PackedTokens = TOKENS) -> bytes:
    seal = answer_seal(domain, exchange, SALT, tokens)
    return b"".join(sealed_chunks(seal, block_names(domain, tokens, 0, BLOCK_SIZE), BLOCKS))


def assembler(domain: Domain = ACME, tokens: PackedTokens = TOKENS, salt: bytes = SALT) -> BlockAssembler:
    seal = answer_seal(domain, EXCHANGE, salt, tokens)
    return BlockAssembler(seal, block_names(domain, tokens, 0, BLOCK_SIZE), BLOCK_BYTES)


@pytest.mark.parametrize("size", [1_000, 99_999, 100_000, 300_000, 10_000_000])
def test_blocks_come_whole_however_they_were_cut(size: int) -> None:
    data, taken = stream(), assembler()
    for start in range(0, len(data), size):
        assert not taken.is_complete
        taken.feed(data[start : start + size])
    assert taken.is_complete
    assert taken.blocks == BLOCKS


def test_chunks_are_bounded() -> None:
    chunks = list(
        sealed_chunks(answer_seal(ACME, EXCHANGE, SALT, TOKENS), block_names(ACME, TOKENS, 0, BLOCK_SIZE), BLOCKS)
    )
    assert {len(chunk) for chunk in chunks[:-1]} == {CHUNK_BYTES}
    assert 0 < len(chunks[-1]) <= CHUNK_BYTES


@pytest.mark.parametrize(
    "foreign",
    [
        stream(GLOBEX),
        stream(exchange=replace(EXCHANGE, nonce=b"n" * 32)),
        stream(exchange=replace(EXCHANGE, holder=Incarnation("other"))),
        stream(exchange=replace(EXCHANGE, asker=Incarnation("other"))),
        stream(exchange=replace(EXCHANGE, cluster_key=b"l" * 32)),
        stream(tokens=pack([*range(39), 7])),
        stream(tokens=pack([7, *range(1, 40)])),
    ],
    ids=["tenant", "question", "holder", "asker", "cluster", "last token", "first token"],
)
def test_an_answer_to_another_question_does_not_open(foreign: bytes) -> None:
    taken = assembler()
    with pytest.raises(CorruptDataError):
        taken.feed(foreign)
    assert taken.blocks == []
    taken = assembler()
    taken.feed(stream())
    assert taken.is_complete


def test_who_does_not_know_the_root_opens_nothing() -> None:
    """Also where all names, the question and the salt are known."""
    names = block_names(ACME, TOKENS, 0, BLOCK_SIZE)
    sealed = b"".join(sealed_chunks(answer_seal(GLOBEX, EXCHANGE, SALT, TOKENS), names, BLOCKS))
    with pytest.raises(CorruptDataError):
        assembler().feed(sealed)


def test_another_salt_does_not_open() -> None:
    with pytest.raises(CorruptDataError):
        assembler(salt=b"t" * 32).feed(stream())


def test_any_bit_counts() -> None:
    data = stream()
    one = len(data) // 10
    for at in [*range(0, 300, 7), one - 1, one // 2]:
        spoilt = bytearray(data[: one + 1_000])
        spoilt[at] ^= 1
        taken = assembler()
        with pytest.raises(CorruptDataError):
            taken.feed(bytes(spoilt))
        assert taken.blocks == []


def test_blocks_do_not_change_places() -> None:
    names = block_names(ACME, TOKENS, 0, BLOCK_SIZE)
    order = [names[0], names[2], names[1]]
    taken = assembler()
    with pytest.raises(CorruptDataError):
        taken.feed(b"".join(sealed_chunks(answer_seal(ACME, EXCHANGE, SALT, TOKENS), order, BLOCKS[:3])))
    assert taken.blocks == BLOCKS[:1]


def test_more_than_was_asked_for_is_refused() -> None:
    taken = assembler()
    with pytest.raises(CorruptDataError, match="more"):
        taken.feed(stream() + b"x")
    taken = assembler()
    taken.feed(stream())
    with pytest.raises(CorruptDataError, match="more"):
        taken.feed(b"x")


def test_questions_open_for_whom_they_were_asked() -> None:
    sealed = seal_question(ACME, EXCHANGE, TOKENS)
    assert open_question(ACME, EXCHANGE, sealed) == TOKENS
    assert TOKENS[:32] not in sealed
    for domain, exchange in (
        (GLOBEX, EXCHANGE),
        (ACME, replace(EXCHANGE, nonce=b"n" * 32)),
        (ACME, replace(EXCHANGE, cluster_key=b"l" * 32)),
        (ACME, replace(EXCHANGE, holder=EXCHANGE.asker, asker=EXCHANGE.holder)),
    ):
        with pytest.raises(CorruptDataError):
            open_question(domain, exchange, sealed)


def test_two_answers_use_two_keys() -> None:
    """Equal questions, one after the other: the holder's salt is another one."""
    name = block_names(ACME, TOKENS, 0, BLOCK_SIZE)[0]
    bodies = []
    for salt in (b"s" * 32, b"t" * 32):
        body = bytearray(BLOCK_BYTES + 16)
        answer_seal(ACME, EXCHANGE, salt, TOKENS).seal(name, BLOCKS[0], body)
        bodies.append(bytes(body))
    assert bodies[0] != bodies[1]
