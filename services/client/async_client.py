"""The asyncio client of a tenant. Owns one channel; belongs to the event loop that made it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from stemcache.v1 import inference_pb2 as pb
from stemcache.v1.inference_pb2_grpc import InferenceServiceStub
from stemcache.v1.usage_pb2_grpc import UsageServiceStub

from services.client import messages
from services.client.async_cache import AsyncTenantCache
from services.client.channel import (
    CALL_TIMEOUT_S,
    GENERATION_TIMEOUT_S,
    async_channel,
    credential_metadata,
    operator_metadata,
)
from services.client.errors import ApiAbortedError, ApiLimitError, ApiUnavailableError, api_errors
from services.client.requests import GenerationRequest, Prompt, Tokens
from services.client.results import Generation, GenerationEvent, ModelCard, Tokenized
from services.client.unbroken import UnbrokenStream
from services.client.usage_requests import usage_message
from services.client.usage_results import TenantUsage, own_usage_of
from services.tls import Trust


class AsyncStemcacheClient:
    """Calls `address` as the tenant whose key `api_key` is. Every method raises ApiError.

    `address` is host:port, or several routers' with commas between: calls go to the first that can be reached.
    """

    def __init__(
        self,
        address: str,
        api_key: str,
        timeout_s: float = GENERATION_TIMEOUT_S,
        operator_token: str = "",
        trust: Trust | None = None,
    ) -> None:
        """`timeout_s` is the deadline of a generation; calls that only read have a shorter one.

        With the operator's token answers tell why they came from where they came. Plain without `trust`.
        """
        self._metadata = credential_metadata(api_key) + operator_metadata(operator_token)
        self._timeout_s = timeout_s
        self._channel = async_channel(address, trust)
        self._stub = InferenceServiceStub(self._channel)
        self._usage = UsageServiceStub(self._channel)
        self.cache = AsyncTenantCache(self._channel, self._metadata, timeout_s)
        """Lookups, warming and pins."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the channel; running calls end as cancelled. Idempotent."""
        await self._channel.close()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Runs a request to its end."""
        message = messages.generate_message(request)
        with api_errors():
            response = await self._stub.Generate(message, timeout=self._timeout_s, metadata=self._metadata)
        return messages.generation_of(response)

    async def stream(self, request: GenerationRequest) -> AsyncIterator[GenerationEvent]:
        """Runs a request and yields its events as they come. Closing the iterator early cancels the request.

        Where its router is lost or stops it goes on at another one (`services/client/unbroken.py`).
        """
        stream = UnbrokenStream(request, self._timeout_s)
        while not stream.is_over:
            call = self._stub.GenerateStream(stream.message, timeout=stream.left_s, metadata=self._metadata)
            try:
                with api_errors():
                    async for response in call:
                        if (event := stream.take(response)) is not None:
                            yield event
                stream.end()
            except (ApiUnavailableError, ApiAbortedError, ApiLimitError) as error:
                await asyncio.sleep(stream.lose(error))
            finally:
                call.cancel()

    async def cancel(self, request_id: str) -> bool:
        """Ends a running request; False where the tenant runs none of that id."""
        message = pb.CancelGenerationRequest(request_id=request_id)
        with api_errors():
            response = await self._stub.CancelGeneration(message, timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        return response.was_running

    async def tokenize(self, prompt: Prompt, model: str = "") -> Tokenized:
        """Tokens of a prompt, as a generation would see them."""
        message = pb.TokenizeRequest(model=model, prompt=messages.prompt_message(prompt))
        with api_errors():
            response = await self._stub.Tokenize(message, timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        return Tokenized(messages.token_ids_of(response.token_ids), response.block_count)

    async def detokenize(self, tokens: Tokens, model: str = "") -> str:
        """Text of tokens, special ones included."""
        message = pb.DetokenizeRequest(model=model, token_ids=messages.prompt_message(tokens).token_ids)
        with api_errors():
            response = await self._stub.Detokenize(message, timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        return response.text

    async def models(self) -> tuple[ModelCard, ...]:
        """Models that can be called now, by name."""
        with api_errors():
            response = await self._stub.ListModels(
                pb.ListModelsRequest(), timeout=CALL_TIMEOUT_S, metadata=self._metadata
            )
        return tuple(messages.model_of(each) for each in response.models)

    async def usage(self, since_unix_s: float | None = None, until_unix_s: float | None = None) -> TenantUsage:
        """What the tenant has used, with each hour; of all that is kept where no time is named."""
        message = usage_message(since_unix_s, until_unix_s)
        with api_errors():
            response = await self._usage.GetUsage(message, timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        return own_usage_of(response)
