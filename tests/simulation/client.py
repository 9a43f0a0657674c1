"""Clients of the simulated cluster: the product's stubs, retries as gRPC makes them, every token compared."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import grpc
from stemcache.v1 import inference_pb2 as pb
from stemcache.v1 import inference_pb2_grpc

from cache_store.tokens import PackedTokens, count, pack, unpack
from tests.simulation.disturbances import Disturbances
from tests.simulation.loop import Process
from tests.simulation.oracle import Oracle, Sent
from tests.simulation.plan import TENANTS, Ask
from worker.sampling import SamplingParams

TIMEOUT_S = 25.0
MAX_TRIES = 4
FIRST_PAUSE_S = 0.2

_UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Client:
    """Sends all requests of a run."""

    def __init__(
        self, process: Process, keys: dict[str, str], routers: list[str], oracle: Oracle, disturbances: Disturbances
    ) -> None:
        """`routers`: addresses."""
        self.process = process
        self.outcomes: dict[str, int] = defaultdict(int)
        self._keys = keys
        self._routers = routers
        self._oracle = oracle
        self._disturbances = disturbances
        self._channels: dict[str, Any] = {}
        self.note_end: Callable[[], None] = lambda: None
        """Called whenever a request has ended."""

    async def run(self, ask: Ask, prompt: PackedTokens) -> None:
        """One request, from the client's first try to its end."""
        await _Asking(self, ask, prompt, self._oracle, self._disturbances).run()

    async def probe(self, ask: Ask) -> None:
        """As `run`, by that router alone."""
        await _Asking(self, ask, pack(ask.prompt), self._oracle, self._disturbances).run()

    async def is_let_in(self, router: int, key: str) -> bool:
        """Whether a router takes an API key."""
        call = self.stub(router).ListModels(
            pb.ListModelsRequest(), timeout=TIMEOUT_S, metadata=(("authorization", f"Bearer {key}"),)
        )
        try:
            await call
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                raise
            return False
        return True

    def stub(self, router: int) -> Any:
        """Of a router."""
        address = self._routers[router]
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address)
        return inference_pb2_grpc.InferenceServiceStub(self._channels[address])

    @property
    def num_routers(self) -> int:
        return len(self._routers)

    def metadata(self, tenant: str) -> tuple[tuple[str, str], ...]:
        """The tenant's key."""
        return (("authorization", f"Bearer {self._keys[tenant]}"),)


def sampling_of(ask: Ask, seed: int) -> SamplingParams:
    """As the worker gets it."""
    return SamplingParams(ask.temperature, 1.0, 0, seed, ask.max_tokens, 0, ())


class _Asking:
    """One request."""

    def __init__(
        self, client: Client, ask: Ask, prompt: PackedTokens, oracle: Oracle, disturbances: Disturbances
    ) -> None:
        self._client = client
        self._ask = ask
        self._tenant = TENANTS[ask.tenant]
        self._prompt = prompt
        self._oracle = oracle
        self._disturbances = disturbances
        self._loop = client.process.loop
        self._expected: tuple[tuple[int, ...], ...] = ()
        self._came: dict[int, list[int]] = defaultdict(list)
        self._routers: list[int] = []
        self._num_messages = 0
        self._is_finished = False
        answers: tuple[tuple[int, ...], ...] = ()
        if not ask.temperature or ask.seed is not None:
            answers = oracle.answer(prompt, sampling_of(ask, ask.seed or 0), ask.num_samples)
        self._sent = Sent(self._tenant, ask.partition, prompt, answers or ((),), self._loop.time())

    async def run(self) -> None:
        self._oracle.sent.append(self._sent)
        trying = asyncio.ensure_future(self._try_until_done())
        if self._ask.cancel_after_s is not None:
            self._loop.call_later(self._ask.cancel_after_s, trying.cancel)
        try:
            outcome = await trying
        except asyncio.CancelledError:
            outcome = "left"
        self._sent.ended_s = self._loop.time()
        self._client.outcomes[outcome] += 1
        self._client.note_end()
        self._oracle.note("client", f"request {self._ask.number} of {self._tenant} ends: {outcome}")

    async def _try_until_done(self) -> str:
        pause_s = FIRST_PAUSE_S
        num_tries = 1 if self._ask.number % 3 == 0 else MAX_TRIES  # not every client retries
        for number in range(num_tries):
            router = (self._ask.router + number) % self._client.num_routers
            self._routers.append(router)
            try:
                await self._try(router)
            except grpc.aio.AioRpcError as error:
                may_retry = error.code() is _UNAVAILABLE and not self._num_messages and number + 1 < num_tries
                if not may_retry:
                    self._judge(error)
                    return str(error.code().name)
                await asyncio.sleep(pause_s)
                pause_s *= 2
            else:
                return "OK"
        raise AssertionError("the last try returns")

    async def _try(self, router: int) -> None:
        self._sent.num_tries += 1
        began_s = self._loop.time()
        left_s = max(0.1, self._sent.begun_s + TIMEOUT_S - began_s)
        message = pb.GenerateStreamRequest(request=self._message())
        call = self._client.stub(router).GenerateStream(
            message, timeout=left_s, metadata=self._client.metadata(self._tenant)
        )
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                self._num_messages += 1
                self._take(response, router, began_s)
                if self._ask.read_pause_s:
                    await asyncio.sleep(self._ask.read_pause_s)
        finally:
            call.cancel()
        if not self._is_finished:
            self._oracle.wrong(f"the stream of request {self._ask.number} ends without its last message")

    def _take(self, response: Any, router: int, began_s: float) -> None:
        kind = response.WhichOneof("event")
        if kind == "started":
            self._start(response.started, router, began_s)
        elif kind == "delta":
            self._compare(response.delta.sample_index, unpack(PackedTokens(response.delta.token_ids.packed)))
        else:
            self._finish(response.finished)

    def _start(self, started: Any, router: int, began_s: float) -> None:
        if self._expected:
            self._oracle.wrong(f"request {self._ask.number} started twice")
        asked = self._ask.seed
        if asked is not None and started.seed != asked:
            self._oracle.wrong(f"request {self._ask.number} has seed {started.seed}, asked for was {asked}")
        sampling = sampling_of(self._ask, started.seed if self._ask.temperature else 0)
        self._expected = self._oracle.answer(self._prompt, sampling, self._ask.num_samples)
        self._sent.answers = self._expected
        self._oracle.num_resumed += started.route.attempts > 1
        self._oracle.require_reusable(self._sent, f"r{router}", began_s, started.usage.cached_tokens)

    def _compare(self, index: int, tokens: tuple[int, ...]) -> None:
        if not self._expected:
            self._oracle.wrong(f"request {self._ask.number} has tokens before its start")
        came = self._came[index]
        came.extend(tokens)
        self._oracle.num_tokens += len(tokens)
        expected = self._expected[index]
        if tuple(came) != expected[: len(came)]:
            self._oracle.wrong(f"request {self._ask.number}, sample {index}: {came} came, right is {expected}")

    def _finish(self, finished: Any) -> None:
        self._is_finished = True
        for index, expected in enumerate(self._expected):
            if tuple(self._came[index]) != expected:
                self._oracle.wrong(
                    f"request {self._ask.number}, sample {index} ends after {len(self._came[index])} tokens of "
                    f"{len(expected)}"
                )
        if finished.usage.prompt_tokens != count(self._prompt):
            self._oracle.wrong(f"request {self._ask.number} is told {finished.usage.prompt_tokens} prompt tokens")

    def _judge(self, error: grpc.aio.AioRpcError) -> None:
        """A request may fail only where what was disturbed leaves no way to serve it."""
        routers = [f"r{router}" for router in self._routers]
        reason = self._disturbances.excuse(error.code(), routers, self._sent.begun_s, self._num_messages)
        if reason is None:
            self._oracle.wrong(
                f"request {self._ask.number} ended with {error.code().name} ({error.details()}) after "
                f"{self._num_messages} messages, though enough was well"
            )

    def _message(self) -> pb.GenerateRequest:
        ask = self._ask
        return pb.GenerateRequest(
            request_id=f"request-{ask.number}",
            prompt=pb.Prompt(token_ids=pb.TokenIds(packed=self._prompt)),
            sampling_params=pb.SamplingParams(
                max_tokens=ask.max_tokens,
                temperature=ask.temperature,
                seed=ask.seed,
                n=ask.num_samples,
                ignore_eos=True,
            ),
            cache_policy=pb.CachePolicy(partition=ask.partition),
        )


def prompt_of(ask: Ask, before: tuple[Ask, PackedTokens] | None, oracle: Oracle) -> PackedTokens:
    """The prompt of a request; where it goes on, after the whole of the one before and its answer."""
    if before is None:
        return pack(ask.prompt)
    earlier, prompt = before
    if earlier.temperature:
        return pack(ask.prompt)
    [answer, *_] = oracle.answer(prompt, sampling_of(earlier, 0), 1)
    return PackedTokens(bytes(prompt) + bytes(pack(answer)) + bytes(pack(ask.prompt[:5] or (1,))))
