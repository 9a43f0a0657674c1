"""Stemcache under load: its client for what is asked once, a channel of its own per tenant for what is measured."""

from __future__ import annotations

from stemcache.v1 import inference_pb2 as pb

from cache_store.errors import InvalidRequestError
from services.client import (
    ApiConflictError,
    ApiInvalidRequestError,
    AsyncStemcacheClient,
    ModelCard,
    PurgePartition,
)
from services.loadtest.backends import WORDS, Caller, ServedModel, alphabet_of, is_this_machine
from services.loadtest.stemcache_target import CachePolicy, StemcacheTarget
from services.tls import Trust


class StemcacheBackend:
    """Implements `Backend`. Belongs to one event loop."""

    name = "stemcache"
    has_partitions = True
    tokenizer = "server"

    def __init__(self, address: str, api_key: str, model: str, timeout_s: float, trust: Trust | None = None) -> None:
        """`api_key` is any tenant's, for what concerns all; `model` is empty where one is served. Plain without
        `trust`."""
        self._address = address
        self._trust = trust
        hosts = {each.strip().rpartition(":")[0] for each in address.split(",")}
        self.is_remote = not all(map(is_this_machine, hosts))
        self._model = model
        self._timeout_s = timeout_s
        self._client = AsyncStemcacheClient(address, api_key, trust=trust)

    async def model(self) -> ServedModel:
        """The named one, or the only one."""
        cards = await self._client.models()
        named = [card for card in cards if card.name == self._model] if self._model else _bases(cards)
        if len(named) != 1:
            names = ", ".join(card.name for card in cards) or "none"
            problem = f"{self._model!r} is not served" if self._model else "more than one model is served, or none"
            raise InvalidRequestError("model", f"{problem}; name one with --model; served are: {names}")
        card = named[0]
        return ServedModel(card.name, card.block_size, card.max_model_len, card.kv_bytes_per_token, card.vocab_size)

    async def alphabet(self, model: ServedModel) -> tuple[int, ...]:
        """Of ordinary words; a model without a tokenizer takes any ids."""
        try:
            encoded = (await self._client.tokenize(" " + WORDS, model.name)).token_ids
        except (ApiConflictError, ApiInvalidRequestError):
            encoded = ()
        return alphabet_of(encoded, model.vocab_size)

    def target(self, caller: Caller, model: ServedModel) -> StemcacheTarget:
        """Reads and writes the cache."""
        return self._target(caller, model, pb.CachePolicy.MODE_READ_WRITE)

    def target_past_cache(self, caller: Caller, model: ServedModel) -> StemcacheTarget:
        """Neither reads nor writes it."""
        return self._target(caller, model, pb.CachePolicy.MODE_BYPASS)

    def _target(self, caller: Caller, model: ServedModel, mode: pb.CachePolicy.Mode.ValueType) -> StemcacheTarget:
        policy = CachePolicy(model.name, caller.partition, mode)
        return StemcacheTarget(self._address, caller.api_key, policy, self._timeout_s, self._trust)

    async def purge(self, caller: Caller) -> None:
        """As the tenant itself."""
        async with AsyncStemcacheClient(self._address, caller.api_key, trust=self._trust) as client:
            await client.cache.purge(PurgePartition(caller.partition))

    async def close(self) -> None:
        """Closes the client."""
        await self._client.close()


def _bases(cards: tuple[ModelCard, ...]) -> list[ModelCard]:
    return [card for card in cards if not card.base_model]
