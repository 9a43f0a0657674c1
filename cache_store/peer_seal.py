"""Seals what goes from worker to worker: the prompt that is asked about, the blocks that answer, and what is offered.

Keys of questions and answers come from the cluster's key, which workers and routers alone have, from the domain's root,
and from random numbers of both sides: neither a question that is sent again nor an answer that was kept opens anything
or uses a key twice. Each block is sealed to its place in the prompt, its tokens and its parent
(`cache_store/block_seal.py`), the key to all tokens of the question. An offer tells a root to who may not know it.

While the cluster's key is exchanged, who asks or offers seals with the one that it uses. The other side knows by the
question's token which that is, and opens an offer with each that it believes.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cache_store.block_name import BlockName
from cache_store.block_seal import BlockSeal
from cache_store.cluster_mac import believed_keys, used_key
from cache_store.digest import chain
from cache_store.domain import Domain
from cache_store.encoding import encode
from cache_store.errors import CorruptDataError, UnauthenticatedError
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
    cluster_key: bytes = field(repr=False)
    """Without it nobody opens or forges anything, also who has seen the domain's root."""


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


def seal_offer(cluster_key: bytes, taker: Incarnation, offer: bytes) -> bytes:
    """What a worker that leaves says to another one: nobody else reads it, and nobody else can have said it."""
    salt = secrets.token_bytes(RANDOM_BYTES)
    return salt + AESGCM(_offer_key(used_key(cluster_key), taker, salt)).encrypt(_NONCE, offer, None)


def open_offer(cluster_key: bytes, taker: Incarnation, sealed: bytes) -> bytes:
    """Inverse of `seal_offer`. Raises UnauthenticatedError."""
    salt, body = sealed[:RANDOM_BYTES], sealed[RANDOM_BYTES:]
    for key in believed_keys(cluster_key):
        try:
            return AESGCM(_offer_key(key, taker, salt)).decrypt(_NONCE, body, None)
        except (InvalidTag, ValueError):  # the latter: shorter than a tag
            continue
    raise UnauthenticatedError("the offer does not open; do the workers share the cluster key?")


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
    data = encode(domain.root, exchange.holder, exchange.asker, exchange.nonce, purpose)
    key = used_key(exchange.cluster_key)
    return hashlib.blake2b(data, key=key, digest_size=32, person=b"sc-peer-key").digest()


def _offer_key(key: bytes, taker: Incarnation, salt: bytes) -> bytes:
    data = encode(taker, salt)
    return hashlib.blake2b(data, key=key, digest_size=32, person=b"sc-offer-key").digest()
