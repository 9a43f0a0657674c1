"""Lookups and pins at a worker, as a router calls them: real gRPC on loopback, real engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from stemcache.worker.v1 import worker_pb2

from cache_store.digest import chain
from cache_store.domain import Domain
from cache_store.index import Incarnation
from cache_store.registry import PROTOCOL_VERSION
from cache_store.tokens import pack
from tests.support.domains import make_domain
from tests.support.memory_stores import MemoryStores
from tests.support.worker_host import WorkerClient, client_of, digest_config, digest_domain, running_workers
from worker.config import NumBlocks
from worker.host import WorkerHost

PROMPT = range(1, 101)
"""Six full blocks of 16 tokens, and four tokens."""
ACME, GLOBEX = digest_domain("acme"), digest_domain("globex")
CALLS = ("LookupPrefix", "PinPrefix", "UnpinPrefix", "ListPins")


class Prefixes:
    """Calls one worker."""

    def __init__(self, client: WorkerClient) -> None:
        self.client = client

    def message(self, name: str, domain: Domain, tokens: Sequence[int] = PROMPT, **fields: Any) -> Any:
        """A valid message of a call."""
        kind = getattr(worker_pb2, f"{name}Request")
        common = {"protocol_version": PROTOCOL_VERSION, "request_token": self.client.token(domain)}
        if name in ("LookupPrefix", "PinPrefix"):
            common["prompt"] = pack(tokens)
        if name in ("PinPrefix", "UnpinPrefix"):
            common["pin_id"] = "p"
        if name == "PinPrefix":
            common["expire_time"] = in_s(60)
        return kind(**(common | fields))

    async def send(self, name: str, message: Any) -> Any:
        return await getattr(self.client.stub, name)(message, timeout=20)

    async def lookup(self, domain: Domain, prompt: Sequence[int] = PROMPT) -> int:
        response = await self.send("LookupPrefix", self.message("LookupPrefix", domain, prompt))
        return int(response.matched_tokens)

    async def pin(self, domain: Domain, tokens: Sequence[int] = PROMPT, **fields: Any) -> int:
        response = await self.send("PinPrefix", self.message("PinPrefix", domain, tokens, **fields))
        return int(response.block_count)

    async def unpin(self, domain: Domain, pin_id: str = "p") -> bool:
        response = await self.send("UnpinPrefix", self.message("UnpinPrefix", domain, pin_id=pin_id))
        return bool(response.was_pinned)

    async def pins(self, domain: Domain) -> list[Any]:
        return list((await self.send("ListPins", self.message("ListPins", domain))).pins)

    async def refused(self, name: str, message: Any) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await self.send(name, message)
        return error.value


def in_s(seconds: float) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromNanoseconds(round((time.time() + seconds) * 1e9))
    return timestamp


@pytest.fixture
async def host() -> AsyncIterator[WorkerHost]:
    async with running_workers([digest_config(pool=NumBlocks(100))], MemoryStores().connect) as [host]:
        yield host


@pytest.fixture
async def prefixes(host: WorkerHost) -> AsyncIterator[Prefixes]:
    async with client_of(host) as client:
        yield Prefixes(client)


async def test_a_lookup_tells_what_a_request_then_reuses(prefixes: Prefixes) -> None:
    assert await prefixes.lookup(ACME) == 0
    await prefixes.client.execute(ACME, PROMPT)
    matched = await prefixes.lookup(ACME)
    assert matched == 96, "the full blocks"
    assert await prefixes.lookup(GLOBEX) == 0
    assert (await prefixes.client.execute(ACME, PROMPT)).cached_tokens == matched


async def test_a_pin_keeps_a_prefix_where_another_goes(prefixes: Prefixes, host: WorkerHost) -> None:
    other = range(200, 300)
    for prompt in (PROMPT, other):
        await prefixes.client.execute(ACME, prompt)
    assert await prefixes.pin(ACME) == 6
    await prefixes.client.execute(GLOBEX, range(1_000, 1_000 + 94 * 16), max_tokens=1)
    assert await prefixes.lookup(ACME) >= 96
    assert await prefixes.lookup(ACME, other) == 0
    assert await host.thread.call(lambda engine: engine.num_held_blocks, 10) == 6


async def test_pins_are_listed_to_their_tenant_and_ended_by_it(prefixes: Prefixes) -> None:
    await prefixes.client.execute(ACME, PROMPT)
    expire_time = in_s(60)
    await prefixes.pin(ACME, expire_time=expire_time, display_name="system prompt")
    [pin] = await prefixes.pins(ACME)
    assert (pin.pin_id, pin.display_name, pin.block_count) == ("p", "system prompt", 6)
    assert abs(pin.expire_time.ToNanoseconds() - expire_time.ToNanoseconds()) < 1_000_000
    assert await prefixes.pins(GLOBEX) == []
    assert not await prefixes.unpin(GLOBEX)
    assert await prefixes.unpin(ACME)
    assert not await prefixes.unpin(ACME)
    assert await prefixes.pins(ACME) == []


async def test_nothing_cached_makes_no_pin(prefixes: Prefixes) -> None:
    await prefixes.client.execute(GLOBEX, PROMPT)
    assert await prefixes.pin(ACME) == 0
    assert await prefixes.pins(ACME) == []
    assert await prefixes.pin(GLOBEX) == 6


async def test_a_pin_ends_on_an_idle_worker(prefixes: Prefixes, host: WorkerHost) -> None:
    await prefixes.client.execute(ACME, PROMPT)
    await prefixes.pin(ACME, expire_time=in_s(0.3))
    deadline_s = time.monotonic() + 10
    while await host.thread.call(lambda engine: engine.num_held_blocks, 10):
        assert time.monotonic() < deadline_s


async def test_the_index_forgets_what_was_dropped_at_its_time_on_an_idle_worker() -> None:
    stores = MemoryStores()
    digests = {domain: b"".join(chain(domain, pack(PROMPT), 16)) for domain in (ACME, GLOBEX)}
    async with running_workers([digest_config()], stores.connect) as [host], client_of(host) as client:

        async def found(domain: Domain) -> int:
            return (await stores.lookup(domain.tag, digests[domain], [host.incarnation]))[host.incarnation]

        short = client.message(ACME, PROMPT)
        short.ttl.FromSeconds(1)
        await client.run(short)
        await client.execute(GLOBEX, PROMPT)
        deadline_s = time.monotonic() + 20
        for domain, expected in ((GLOBEX, 6), (ACME, 0), (GLOBEX, 6)):
            while await found(domain) != expected:
                assert time.monotonic() < deadline_s
                await asyncio.sleep(0.01)


async def test_the_limit_is_named_with_when_to_come_again(prefixes: Prefixes) -> None:
    await prefixes.client.execute(ACME, range(1, 200))
    assert await prefixes.pin(ACME, range(1, 130)) == 8
    error = await prefixes.refused("PinPrefix", prefixes.message("PinPrefix", ACME, range(1, 200), pin_id="q"))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    details = rpc_status.from_call(error).details
    quota, retry = error_details_pb2.QuotaFailure(), error_details_pb2.RetryInfo()
    assert details[0].Unpack(quota)
    assert details[1].Unpack(retry)
    assert quota.violations[0].subject == "pinned blocks"


def other_end(token: bytes) -> bytes:
    """The token with another last byte."""
    return token[:-1] + bytes([token[-1] ^ 1])


@pytest.mark.parametrize("name", CALLS)
async def test_every_call_wants_its_protocol_version_and_a_token_that_fits(prefixes: Prefixes, name: str) -> None:
    await prefixes.client.execute(ACME, PROMPT)
    wrong_version = prefixes.message(name, ACME, protocol_version=PROTOCOL_VERSION + 1)
    assert (await prefixes.refused(name, wrong_version)).code() is grpc.StatusCode.FAILED_PRECONDITION
    make: list[Callable[[], bytes]] = [
        lambda: b"",
        lambda: other_end(prefixes.client.token(ACME)),
        lambda: prefixes.client.token(GLOBEX).replace(b"globex", b"acmeee"),
        lambda: prefixes.client.token(ACME, lifetime_s=-1.0),
        lambda: prefixes.client.token(ACME, incarnation=Incarnation("0" * 32)),
    ]
    for token in make:
        error = await prefixes.refused(name, prefixes.message(name, ACME, request_token=token()))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    other_format = await prefixes.refused(name, prefixes.message(name, make_domain("acme")))
    assert other_format.code() is grpc.StatusCode.FAILED_PRECONDITION
    await prefixes.send(name, prefixes.message(name, ACME))


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "prompt": ("LookupPrefix", {"prompt": b"abc"}),
    "prompt ": ("PinPrefix", {"prompt": b"abc"}),
    "pin_id": ("PinPrefix", {"pin_id": ""}),
    "pin_id ": ("UnpinPrefix", {"pin_id": "é" * 65}),
    "display_name": ("PinPrefix", {"display_name": "é" * 65}),
    "expire_time": ("PinPrefix", {"expire_time": Timestamp()}),
    "expire_time ": ("PinPrefix", {"expire_time": in_s(31 * 86_400)}),
}


@pytest.mark.parametrize("field", BAD)
async def test_bad_input_is_refused_by_field(prefixes: Prefixes, field: str) -> None:
    name, fields = BAD[field]
    error = await prefixes.refused(name, prefixes.message(name, ACME, **fields))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    bad = error_details_pb2.BadRequest()
    assert rpc_status.from_call(error).details[0].Unpack(bad)
    assert bad.field_violations[0].field == field.strip()


async def test_a_draining_worker_pins_nothing_new_and_lets_go(prefixes: Prefixes, host: WorkerHost) -> None:
    await prefixes.client.execute(ACME, PROMPT)
    await prefixes.pin(ACME)
    await host.drain(5)
    error = await prefixes.refused("PinPrefix", prefixes.message("PinPrefix", ACME, pin_id="q"))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert [pin.pin_id for pin in await prefixes.pins(ACME)] == ["p"]
    assert await prefixes.unpin(ACME)


async def test_pins_give_way_to_a_request_that_could_not_run_otherwise(prefixes: Prefixes, host: WorkerHost) -> None:
    await prefixes.client.execute(ACME, PROMPT)
    assert await prefixes.pin(ACME) == 6
    await prefixes.client.execute(ACME, range(1_000, 1_000 + 94 * 16), max_tokens=1)
    assert len(await prefixes.pins(ACME)) == 1, "there was room beside it"
    assert (await prefixes.client.execute(ACME, range(5_000, 5_000 + 97 * 16), max_tokens=1)).finished is not None
    assert await prefixes.pins(ACME) == []
    assert host.thread.load.pressure.yielded_pins == 1


async def test_a_worker_that_starts_again_has_no_pins() -> None:
    stores = MemoryStores()
    for _ in range(2):
        async with running_workers([digest_config()], stores.connect) as [host], client_of(host) as client:
            prefixes = Prefixes(client)
            assert await prefixes.pins(ACME) == []
            await client.execute(ACME, PROMPT)
            assert await prefixes.pin(ACME) == 6
