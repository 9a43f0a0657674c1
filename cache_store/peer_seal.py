"""Seals what goes from worker to worker: the prompt that is asked about, and the blocks that answer.

Keys come from the domain's root, which both sides know and no message has, and from random numbers of both: neither a
question that is sent again nor an answer that was kept opens anything or uses a key twice. Each block is sealed to its
place in the prompt, its tokens and its parent (`cache_store/block_seal.py`), the key to all tokens of the question.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cache_store.block_name import BlockName
from cache_store.block_seal import BlockSeal
from cache_store.digest import chain
from cache_store.domain import Domain
from cache_store.encoding import encode
from cache_store.errors import CorruptDataError
from cache_store.index import Incarnation
from cache_store.tokens import PackedTokens, part

RANDOM_BYTES = 32
_NONCE = bytes(12)
"""Each key of a question seals one."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and its answer."""

    holder: Incarnation
    asker: Incarnation
    nonce: bytes
    """Random, of the asker."""


def seal_question(domain: Domain, exchange: Exchange, tokens: PackedTokens) -> bytes:
    """The prompt that blocks are asked for, for the holder only."""
    return AESGCM(_key(domain, exchange, b"question")).encrypt(_NONCE, tokens, None)


def open_question(domain: Domain, exchange: Exchange, sealed: bytes) -> PackedTokens:
    """Inverse of `seal_question`. Raises CorruptDataError."""
    try:
        return PackedTokens(AESGCM(_key(domain, exchange, b"question")).decrypt(_NONCE, sealed, None))
    except InvalidTag as error:
        raise CorruptDataError("the question for blocks does not open") from error


def answer_seal(domain: Domain, exchange: Exchange, salt: bytes, tokens: PackedTokens) -> BlockSeal:
    """Seals and opens the blocks of one answer. `salt` is random, of the holder; `tokens` are those of the question."""
    digest = hashlib.blake2b(tokens, digest_size=32).digest()
    return BlockSeal(_key(domain, exchange, b"answer" + salt + digest))


def block_names(domain: Domain, tokens: PackedTokens, first_block: int, block_size: int) -> list[BlockName]:
    """What the full blocks of a prompt are called on their way, from `first_block` on; numbers are their places."""
    digests = chain(domain, tokens, block_size)
    parents = [domain.root, *digests]
    return [
        BlockName(
            domain.root,
            parents[number],
            digests[number],
            part(tokens, number * block_size, (number + 1) * block_size),
            number,
        )
        for number in range(first_block, len(digests))
    ]


def _key(domain: Domain, exchange: Exchange, purpose: bytes) -> bytes:
    data = encode(exchange.holder, exchange.asker, exchange.nonce, purpose)
    return hashlib.blake2b(data, key=domain.root, digest_size=32, person=b"sc-peer-key").digest()
