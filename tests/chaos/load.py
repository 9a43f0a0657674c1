"""Greedy streams through the client, each compared with an oracle, and what became of every one of them.

The load is closed: so many streams run at once, each beginning anew when it ends. All times are those of this machine's
clock, since they are compared with logs of other processes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from cache_store.tokens import pack
from services.client.async_client import AsyncStemcacheClient
from services.client.errors import ApiError
from services.client.requests import GenerationRequest, Sampling, Tokens
from services.client.results import Delta, GenerationFinished, GenerationStarted
from worker.digest_rule import expected_output
from worker.digest_runner import digest_model
from worker.sampling import SamplingParams

Prompt = tuple[int, ...]
Oracle = Callable[[Prompt, int], tuple[int, ...]]
"""The tokens that must follow a prompt."""


@dataclass
class Stream:
    """One request and what was seen of it."""

    request_id: str
    tenant: str
    prompt: Prompt
    max_tokens: int
    sent_s: float
    tokens: list[int] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    first_worker: str = ""
    """Where its first token was made."""
    attempts: int = 0
    degraded: bool = False
    cached_tokens: int = 0
    ended_s: float | None = None
    error: str = ""
    """Name of the status that it ended with, and what was said; empty: it ended well."""

    @property
    def has_begun(self) -> bool:
        """Whether its answer had begun: gRPC repeats nothing of which a message has come, be it without a token."""
        return bool(self.tokens or self.first_worker)

    @property
    def begun_s(self) -> float | None:
        """When its first token came."""
        return self.token_times_s[0] if self.token_times_s else None

    def is_waiting(self, at_s: float) -> bool:
        """Whether it had been sent and had no token yet."""
        return self.sent_s < at_s and (self.begun_s is None or self.begun_s > at_s) and not self.had_ended(at_s)

    def is_streaming(self, at_s: float) -> bool:
        """Whether some of its tokens had come, and not all."""
        return self.begun_s is not None and self.begun_s < at_s and not self.had_ended(at_s)

    def had_ended(self, at_s: float) -> bool:
        """Whether it was over."""
        return self.ended_s is not None and self.ended_s <= at_s

    def silence_s(self, at_s: float) -> float:
        """The longest time without a token from then on, until its end or now."""
        times = [at_s, *(when for when in self.token_times_s if when > at_s), self.ended_s or time.time()]
        return max(later - earlier for earlier, later in pairwise(times))


def digest_oracle(prompt: Prompt, max_tokens: int) -> tuple[int, ...]:
    """Of the token-digest model, from the prompt alone."""
    info = digest_model()
    sampling = SamplingParams(0.0, 1.0, 0, 0, max_tokens, 0, ())
    return expected_output(info.geometry, info.vocab_size, pack(prompt), sampling, 1)[0].token_ids


class Caller:
    """One tenant's client, as it is told the routers' addresses."""

    def __init__(self, tenant: str, api_key: str, address: str, timeout_s: float = 120.0) -> None:
        self.tenant = tenant
        self.client = AsyncStemcacheClient(address, api_key, timeout_s)

    async def run(self, stream: Stream) -> None:
        """Sends the request and reads it to its end, whatever that is."""
        request = GenerationRequest(
            Tokens(stream.prompt),
            Sampling(max_tokens=stream.max_tokens, ignore_eos=True),
            request_id=stream.request_id,
        )
        try:
            async for event in self.client.stream(request):
                _note(stream, event)
        except ApiError as error:
            stream.error = f"{error.code.name}: {error.message}"
        finally:
            stream.ended_s = time.time()


def _note(stream: Stream, event: GenerationStarted | Delta | GenerationFinished) -> None:
    now_s = time.time()
    if isinstance(event, GenerationStarted):
        stream.first_worker, stream.attempts = event.route.worker_id, event.route.attempts
        stream.degraded, stream.cached_tokens = event.route.degraded, event.usage.cached_tokens
    elif isinstance(event, Delta):
        stream.tokens.extend(event.token_ids)
        stream.token_times_s.extend([now_s] * len(event.token_ids))


@dataclass(frozen=True, slots=True)
class Shape:
    """What the streams of a load are like."""

    num_streams: int = 40
    """Of each caller, at once."""
    num_prefixes: int = 12
    """Different beginnings of prompts, of each tenant."""
    prefix_tokens: int = 320
    suffix_tokens: int = 17
    max_tokens: int = 24
    pause_s: float = 0.0
    """Between the end of a stream and the next one."""


class Load:
    """Runs streams for a while and keeps all of them."""

    def __init__(
        self, callers: Sequence[Caller], shape: Shape, oracle: Oracle, seed: int, prompts: Sequence[Prompt] = ()
    ) -> None:
        """`prompts`: those to choose from; none: beginnings that are shared, and ends that are not, are drawn."""
        self._callers = callers
        self._prompts = prompts
        self.shape = shape
        self._oracle = oracle
        self._rng = random.Random(seed)
        self._prefixes = {
            caller.tenant: [self._draw(shape.prefix_tokens) for _ in range(shape.num_prefixes)] for caller in callers
        }
        self.streams: list[Stream] = []
        self._is_over = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        """New streams begin until the block ends; then those that run are read to their end."""
        tasks = [
            asyncio.create_task(self._repeat(caller), name="stream")
            for caller in self._callers
            for _ in range(self.shape.num_streams)
        ]
        try:
            yield self
            self._is_over.set()
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """No new streams from now on."""
        self._is_over.set()

    def prompts_of(self, tenant: str) -> list[Prompt]:
        """The beginnings of a tenant's prompts."""
        return self._prefixes[tenant]

    def begun_since(self, at_s: float) -> list[Stream]:
        """Streams that were sent after that time and have ended, in the order in which they were sent."""
        return [each for each in self.streams if each.sent_s >= at_s and each.ended_s is not None]

    def num_wrong(self) -> int:
        """Tokens that are not those of the oracle, over all streams; what is missing of one that ended well too."""
        return sum(self._num_wrong(stream) for stream in self.streams)

    def _num_wrong(self, stream: Stream) -> int:
        if not stream.tokens and stream.error:
            return 0
        expected = self._oracle(stream.prompt, stream.max_tokens)
        wrong = sum(told != right for told, right in zip(stream.tokens, expected, strict=False))
        surplus = max(0, len(stream.tokens) - len(expected))
        missing = 0 if stream.error or stream.ended_s is None else max(0, len(expected) - len(stream.tokens))
        return wrong + surplus + missing

    async def _repeat(self, caller: Caller) -> None:
        await asyncio.sleep(self._rng.random() * 0.5)
        while not self._is_over.is_set():
            prompt = self._prompt(caller.tenant)
            name = f"r{len(self.streams)}"
            stream = Stream(name, caller.tenant, prompt, self.shape.max_tokens, time.time())
            self.streams.append(stream)
            await caller.run(stream)
            await asyncio.sleep(self.shape.pause_s or (0.2 if stream.error else 0.0))

    def _prompt(self, tenant: str) -> Prompt:
        if self._prompts:
            return self._rng.choice(self._prompts)
        return self._rng.choice(self._prefixes[tenant]) + self._draw(self.shape.suffix_tokens)

    def _draw(self, num_tokens: int) -> Prompt:
        return tuple(self._rng.randrange(1, 32_000) for _ in range(num_tokens))
