"""What every registry of workers does, whatever keeps it: memory, Valkey or Redis."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from cache_store.clock import ManualClock
from cache_store.memory_registry import MemoryRegistry
from cache_store.redis_registry import RedisRegistryReader, RedisRegistryWriter
from cache_store.registry import (
    LEASE_S,
    PROTOCOL_VERSION,
    RegistryReader,
    RegistryWriter,
    Renewal,
    SupersededError,
    WorkerId,
    WorkerLoad,
    WorkerRecord,
)
from services.cluster.redis_roles import RedisRole
from tests.simulation.store import Store
from tests.simulation.store_server import StoreSession
from tests.support.redis_servers import server_named
from tests.support.worker_records import worker_record

OLD = worker_record("w0", incarnation="1" * 32)
NEW = worker_record("w0", incarnation="2" * 32)
OTHER = worker_record("w1", incarnation="3" * 32)


@dataclass(frozen=True)
class Registry:
    """Both sides of one registry. Writers are made anew, as each worker has its own."""

    reader: RegistryReader
    writer: Callable[[], RegistryWriter]
    let_leases_run_out: Callable[[], Awaitable[None]]


@pytest.fixture(params=["memory", "valkey", "redis", "simulated"])
async def registry(request: pytest.FixtureRequest) -> AsyncIterator[Registry]:
    if request.param == "memory":
        clock = ManualClock()
        memory = MemoryRegistry(clock)

        async def advance() -> None:
            clock.advance(LEASE_S)

        yield Registry(memory, lambda: memory, advance)
        return
    if request.param == "simulated":
        ticking = ManualClock()
        session = StoreSession(Store(lambda: round(ticking.unix_s() * 1000), random.Random(0)))

        async def let_pass() -> None:
            ticking.advance(LEASE_S)

        yield Registry(RedisRegistryReader(session), lambda: RedisRegistryWriter(session), let_pass)
        return
    server = server_named(request, request.param)
    async with server.session(RedisRole.ROUTER) as reading, server.session(RedisRole.WORKER) as writing:

        async def expire() -> None:
            server.remove("sc:{workers}:lease:*")

        yield Registry(
            RedisRegistryReader(reading, deadline_s=5.0), lambda: RedisRegistryWriter(writing, deadline_s=5.0), expire
        )


async def test_no_workers_at_first(registry: Registry) -> None:
    assert await registry.reader.workers() == []


async def test_a_record_is_read_as_it_was_written(registry: Registry) -> None:
    record = WorkerRecord(
        protocol_version=PROTOCOL_VERSION,
        worker_id=WorkerId("wörker 0"),
        incarnation=OLD.incarnation,
        address="[::1]:4711",
        model="SmolLM2",
        kv_format=OLD.kv_format,
        tokenizer_digest="ab" * 32,
        block_size=16,
        num_blocks=1_000,
        kv_bytes_per_token=46_080,
        max_model_len=8_192,
        max_num_sequences=64,
        vocab_size=49_152,
        eos_token_ids=(2, 0),
        draining=True,
        load=WorkerLoad(3, 2, 1_000, 812.5, 17),
    )
    assert await registry.writer().renew(record) is Renewal.NEW
    assert await registry.reader.workers() == [record]


async def test_workers_come_by_id(registry: Registry) -> None:
    for record in (OTHER, OLD):
        await registry.writer().renew(record)
    assert await registry.reader.workers() == [OLD, OTHER]


async def test_a_renewal_replaces_the_record(registry: Registry) -> None:
    writer = registry.writer()
    await writer.renew(OLD)
    busy = replace(OLD, draining=True, load=replace(OLD.load, running_requests=5))
    assert await writer.renew(busy) is Renewal.KEPT
    assert await registry.reader.workers() == [busy]


async def test_a_worker_whose_lease_ran_out_is_gone_until_it_renews(registry: Registry) -> None:
    writer = registry.writer()
    await writer.renew(OLD)
    await registry.let_leases_run_out()
    assert await registry.reader.workers() == []
    assert await writer.renew(OLD) is Renewal.NEW
    assert await registry.reader.workers() == [OLD]


async def test_who_leaves_is_gone_at_once_and_may_come_back(registry: Registry) -> None:
    writer = registry.writer()
    await writer.renew(OLD)
    await registry.writer().renew(OTHER)
    await writer.leave(OLD.worker_id, OLD.incarnation)
    assert await registry.reader.workers() == [OTHER]
    assert await writer.renew(OLD) is Renewal.NEW


async def test_a_new_incarnation_takes_the_workers_place(registry: Registry) -> None:
    await registry.writer().renew(OLD)
    assert await registry.writer().renew(NEW) is Renewal.NEW
    assert await registry.reader.workers() == [NEW]


async def test_a_zombie_does_not_take_its_successors_place(registry: Registry) -> None:
    zombie, successor = registry.writer(), registry.writer()
    await zombie.renew(OLD)
    await successor.renew(NEW)
    with pytest.raises(SupersededError, match="w0"):
        await zombie.renew(OLD)
    assert await registry.reader.workers() == [NEW]
    assert await successor.renew(NEW) is Renewal.KEPT


async def test_a_zombie_stays_refused_when_its_successor_has_ended(registry: Registry) -> None:
    zombie, successor = registry.writer(), registry.writer()
    await zombie.renew(OLD)
    await successor.renew(NEW)
    await successor.leave(NEW.worker_id, NEW.incarnation)
    with pytest.raises(SupersededError):
        await zombie.renew(OLD)
    assert await registry.reader.workers() == []


async def test_a_zombie_that_leaves_does_not_end_its_successors_lease(registry: Registry) -> None:
    zombie, successor = registry.writer(), registry.writer()
    await zombie.renew(OLD)
    await successor.renew(NEW)
    await zombie.leave(OLD.worker_id, OLD.incarnation)
    assert await registry.reader.workers() == [NEW]


async def test_a_record_of_another_version_tells_no_more_than_its_name(registry: Registry) -> None:
    await registry.writer().renew(replace(OLD, protocol_version=PROTOCOL_VERSION + 1))
    [record] = await registry.reader.workers()
    assert (record.protocol_version, record.worker_id, record.incarnation) == (
        PROTOCOL_VERSION + 1,
        OLD.worker_id,
        OLD.incarnation,
    )
    assert not record.address
