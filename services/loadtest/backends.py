"""What a run needs of a kind of server beside sending to it. Knows no protocol."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Protocol

from services.loadtest.targets import Target

WORDS = (
    "time people year way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education foot boy age policy music market sense nation plan college"
)
"""Ordinary words: their tokens are the alphabet of synthetic prompts."""
MIN_ALPHABET = 16


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model, as its server tells."""

    name: str
    block_size: int
    """Tokens per cache block."""
    max_model_len: int
    kv_bytes_per_token: int
    """0 where it is not known; likewise the next."""
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends, and into which space of the cache."""

    tenant: str
    api_key: str
    partition: str

    def __repr__(self) -> str:
        return f"Caller({self.tenant!r}, {self.partition!r})"


class Backend(Protocol):
    """One server."""

    @property
    def name(self) -> str:
        """`stemcache` or `openai`."""

    @property
    def has_partitions(self) -> bool:
        """Whether it keeps partitions apart and can purge one; else a run begins its prompts with tokens of its own."""

    @property
    def is_remote(self) -> bool:
        """Whether it may run on another machine than this one."""

    @property
    def tokenizer(self) -> str:
        """Who counts tokens, for the conditions."""

    async def model(self) -> ServedModel:
        """The model that will be called. Raises StemcacheError where there is none, or no telling which."""

    async def alphabet(self, model: ServedModel) -> tuple[int, ...]:
        """Tokens that ordinary text is made of."""

    def target(self, caller: Caller, model: ServedModel) -> Target:
        """A way to send. To be closed."""

    def target_past_cache(self, caller: Caller, model: ServedModel) -> Target:
        """The same, and nothing is cached of what is sent, where the server offers that."""

    async def purge(self, caller: Caller) -> None:
        """Forgets what is cached in the caller's partition."""

    async def close(self) -> None:
        """Gives connections back."""


def alphabet_of(tokens: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    """Different tokens of an encoded text; where they are too few, plain ids of the middle of the vocabulary."""
    found = tuple(sorted(set(tokens)))
    if len(found) >= MIN_ALPHABET:
        return found
    low = min(256, vocab_size // 2)
    return tuple(range(low, max(low + 1, min(vocab_size, low + 4_096))))


def is_this_machine(host: str) -> bool:
    """Whether that name or address surely means this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
