"""Sends the isolation test's requests over the tenants' API. Owns one channel per tenant.

Both use a partition of one name, made up for this test: a partition must not bring two tenants together either, and
nothing that earlier tests have left is in it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from cache_store.errors import PreconditionError
from services.client import AsyncStemcacheClient
from services.client.purge_scope import PurgePartition
from services.client.requests import GenerationRequest, Sampling, Tokens
from services.client.results import Delta, GenerationFinished, ModelCard
from services.loadtest.isolation.samples import Answer, Party
from services.tls import Trust

_ONE_TOKEN = Sampling(temperature=0.0, max_tokens=1, ignore_eos=True)


class ClientProber:
    """Implements `services.loadtest.isolation.samples.Prober`."""

    def __init__(self, clients: Mapping[Party, AsyncStemcacheClient], model: str, partition: str) -> None:
        self._clients = clients
        self._model = model
        self._partition = partition

    async def ask(self, party: Party, prompt: Sequence[int]) -> Answer:
        """Raises ApiError."""
        request = GenerationRequest(Tokens(tuple(prompt)), _ONE_TOKEN, self._model, partition=self._partition)
        begin_s = time.perf_counter()
        ttft_s = None
        finished: GenerationFinished | None = None
        async for event in self._clients[party].stream(request):
            if isinstance(event, Delta) and ttft_s is None:
                ttft_s = time.perf_counter() - begin_s
            elif isinstance(event, GenerationFinished):
                finished = event
        assert ttft_s is not None, "a stream that ended without an error has a token"
        assert finished is not None, "a stream that ended without an error says so"
        return Answer(ttft_s, finished.usage.prompt_tokens, finished.usage.cached_tokens)


@asynccontextmanager
async def client_prober(
    address: str, keys: Mapping[Party, str], model: str, trust: Trust | None = None
) -> AsyncIterator[tuple[ClientProber, ModelCard]]:
    """A prober, and the model that it asks; `model` may be empty where there is one. Purges what it has cached."""
    partition = f"isolation-{secrets.token_hex(8)}"
    async with AsyncExitStack() as stack:
        clients = {
            party: await stack.enter_async_context(AsyncStemcacheClient(address, key, trust=trust))
            for party, key in keys.items()
        }
        card = _chosen(await clients[Party.LEFT].models(), model)
        yield ClientProber(clients, card.name, partition), card
        for client in clients.values():
            await client.cache.purge(PurgePartition(partition))


def _chosen(models: Sequence[ModelCard], name: str) -> ModelCard:
    """Raises PreconditionError where it is not clear which."""
    found = [card for card in models if name in ("", card.name)]
    if len(found) == 1 or (not name and len([card for card in found if not card.base_model]) == 1):
        return next(card for card in found if name or not card.base_model)
    served = ", ".join(sorted(card.name for card in models)) or "none"
    raise PreconditionError(f"say which model to ask: --model NAME; served are: {served}")
