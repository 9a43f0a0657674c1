"""Purges of one router over a real store: order of the steps, receipts, and an end between any two of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from cache_store.errors import NotFoundError, UnavailableError
from cache_store.fence import FenceNotice
from cache_store.fence_document import FenceReader
from cache_store.quota_document import read_head, read_published
from services.router.purges import PurgeReceipt
from services.tenants.directory import CONTROL_AGE_BOUND_S
from services.tenants.model import Tenant
from services.tenants.purge import EVERYTHING, ModelScope, PartitionScope, PurgeScope
from tests.support.control import RouterControl, operator_client, raw_control, roll_back
from tests.support.domains import FORMAT
from tests.support.memory_quotas import MemoryQuotas
from tests.support.purge_bench import KEY, PurgeBench, purge_bench, scripted_workers
from tests.support.redis_servers import RedisServer

SCOPES = [EVERYTHING, PartitionScope("p"), ModelScope("m")]


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with operator_client(redis_server) as client:
        yield client


@pytest.fixture
async def bench(redis: Redis, tmp_path: Path) -> AsyncIterator[PurgeBench]:
    async with purge_bench(redis, tmp_path / "a") as made:
        await made.control.sync.sync_once()
        await made.control.sync.adopt((await made.control.store.create_tenant("acme")).state)
        await made.control.sync.adopt((await made.control.store.create_tenant("globex")).state)
        yield made


def root(control: RouterControl, name: str = "acme", partition: str = "p") -> bytes:
    """Of the domain that the router derives now."""
    return control.directory.latest(tenant(control, name)).domain(partition, "m", FORMAT).root


def tenant(control: RouterControl, name: str = "acme") -> Tenant:
    return control.directory.tenant_by_name(name)


def published_fences(published: MemoryQuotas) -> dict[str, object]:
    assert published.document is not None
    return dict(
        read_published(read_head(KEY, published.document.head), published.document.body, FenceReader()).fences.fences
    )


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_purge_is_written_published_and_told(bench: PurgeBench, scope: PurgeScope) -> None:
    before, others = root(bench.control), root(bench.control, "globex")
    async with scripted_workers("acknowledges", "acknowledges") as (records, scripts):
        await bench.see(*records)
        receipt = await bench.purges.purge(tenant(bench.control).id, scope)
    fence = tenant(bench.control).fence
    assert root(bench.control) != before
    assert root(bench.control, "globex") == others
    assert (await bench.control.store.read()).table.tenants[fence.tenant].fence == fence
    assert published_fences(bench.published)[fence.tenant] == fence
    assert [script.notices for script in scripts] == [[FenceNotice(fence.tenant, fence, receipt.generation)]] * 2
    assert (receipt.num_acknowledged, receipt.num_pending, receipt.purged.device) == (2, 0, 10)
    assert receipt.complete_unix_s == receipt.purge_unix_s + CONTROL_AGE_BOUND_S


async def test_a_worker_that_does_not_acknowledge_is_pending_with_its_reason(bench: PurgeBench) -> None:
    async with scripted_workers("acknowledges", "hangs", "refuses", "restarted") as (records, _):
        await bench.see(*records)
        receipt = await bench.purges.purge(tenant(bench.control).id, EVERYTHING)
    assert [answer.acknowledgement is not None for answer in receipt.workers] == [True, False, False, False]
    assert [bool(answer.error) for answer in receipt.workers] == [False, True, True, True]
    assert "secret" not in receipt.workers[2].error
    assert (receipt.num_acknowledged, receipt.num_pending, receipt.purged.host) == (1, 3, 3)


async def test_a_worker_in_the_middle_of_a_step_acknowledges_without_counts(bench: PurgeBench) -> None:
    async with scripted_workers("busy", "acknowledges") as (records, _):
        await bench.see(*records)
        receipt = await bench.purges.purge(tenant(bench.control).id, EVERYTHING)
    assert (receipt.num_acknowledged, receipt.num_uncounted, receipt.num_pending) == (2, 1, 0)
    assert receipt.purged.device == 5


async def test_a_worker_that_is_not_there_does_not_hold_up_a_purge(bench: PurgeBench) -> None:
    async with scripted_workers("acknowledges") as (records, _):
        await bench.see(*records)
    receipt = await bench.purges.purge(tenant(bench.control).id, EVERYTHING)
    assert (receipt.num_acknowledged, receipt.num_pending) == (0, 1)


async def test_a_model_that_nobody_serves_is_no_purge(bench: PurgeBench) -> None:
    before = tenant(bench.control)
    with pytest.raises(NotFoundError, match="'typo'"):
        await bench.purges.purge(before.id, ModelScope("typo"))
    assert (await bench.control.store.read()).table.tenants[before.id] == before


async def test_rotating_and_deleting_tell_workers_too(bench: PurgeBench) -> None:
    async with scripted_workers("acknowledges") as (records, (script,)):
        await bench.see(*records)
        done, rotated = await bench.purges.rotate("acme")
        deleted = await bench.purges.delete("acme")
    assert script.notices == [
        FenceNotice(done.value.id, done.value.fence, rotated.generation),
        FenceNotice(done.value.id, None, deleted.generation),
    ]
    assert published_fences(bench.published).keys() == {tenant(bench.control, "globex").id}


async def test_a_purge_that_cannot_be_written_down_tells_nobody(bench: PurgeBench, tmp_path: Path) -> None:
    before = root(bench.control)
    acme = tenant(bench.control).id
    async with scripted_workers("acknowledges") as (records, (script,)):
        await bench.see(*records)
        bench.control.store._redis = Redis(unix_socket_path=str(tmp_path / "nobody listens here"))
        with pytest.raises(UnavailableError):
            await bench.purges.purge(acme, EVERYTHING)
    assert root(bench.control) == before
    assert not script.notices


async def test_workers_are_told_where_the_store_goes_away_right_after_the_write(
    bench: PurgeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wrote meanwhile, so that what was written has to be read back."""
    acme, sync = tenant(bench.control).id, bench.control.sync
    ways = iter([sync.sync_once, unavailable])
    monkeypatch.setattr(sync, "sync_once", lambda: next(ways)())
    monkeypatch.setattr(sync, "adopt", nothing)
    async with scripted_workers("acknowledges") as (records, (script,)):
        await bench.see(*records)
        with pytest.raises(UnavailableError, match="away"):
            await bench.purges.purge(acme, EVERYTHING)
    written = (await bench.control.store.read()).table.tenants[acme].fence
    assert [notice.fence for notice in script.notices] == [written]


async def unavailable() -> None:
    raise UnavailableError("the store is away", 1.0)


async def nothing(*_: object) -> None:
    """What others wrote is newer."""


class LostError(Exception):
    """The router ended here."""


async def lost(*_: object) -> None:
    raise LostError


STEPS = ("adopt", "publish", "tell")


def break_at(bench: PurgeBench, step: str) -> None:
    """Has the router end before that step."""
    target = {"adopt": bench.control.sync, "publish": bench.publisher, "tell": bench.purges._notices}[step]
    setattr(target, step, lost)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("scope", SCOPES)
async def test_an_end_between_any_two_steps_leaves_nothing_reachable(
    bench: PurgeBench, redis: Redis, tmp_path: Path, scope: PurgeScope, step: str
) -> None:
    before = root(bench.control)
    break_at(bench, step)
    with pytest.raises((LostError, ExceptionGroup)):
        await bench.purges.purge(tenant(bench.control).id, scope)
    async with purge_bench(redis, tmp_path / "a") as again:  # the same router, started anew
        await again.control.sync.sync_once()
        assert root(again.control) != before
        await again.publisher.publish()
        assert published_fences(again.published)[tenant(again.control).id] == tenant(again.control).fence


async def test_another_router_has_the_purge_with_its_next_poll(bench: PurgeBench, redis: Redis, tmp_path: Path) -> None:
    other = RouterControl(redis, tmp_path / "b")
    await other.sync.sync_once()
    before = root(other)
    await bench.purges.purge(tenant(bench.control).id, PartitionScope("p"))
    assert root(other) == before
    await other.sync.sync_once()
    assert root(other) == root(bench.control) != before


async def test_a_router_that_is_cut_off_serves_without_reuse_when_the_purge_is_complete(
    bench: PurgeBench, redis: Redis, tmp_path: Path
) -> None:
    behind = RouterControl(redis, tmp_path / "b")
    await behind.sync.sync_once()
    receipt: PurgeReceipt = await bench.purges.purge(tenant(bench.control).id, EVERYTHING)
    assert not behind.directory.is_stale
    behind.clock.advance(receipt.complete_unix_s - receipt.purge_unix_s + 0.001)
    assert behind.directory.is_stale


@pytest.mark.parametrize("scope", SCOPES)
async def test_an_old_dump_that_is_put_back_brings_back_nothing_that_was_purged(
    bench: PurgeBench, redis: Redis, tmp_path: Path, scope: PurgeScope
) -> None:
    before, dump = root(bench.control), await raw_control(redis)
    await bench.purges.purge(tenant(bench.control).id, scope)
    purged = root(bench.control)
    await roll_back(redis, dump)
    restarted = RouterControl(redis, tmp_path / "a")
    await restarted.sync.sync_once()
    assert root(restarted) == purged != before
    await bench.control.sync.sync_once()
    assert root(bench.control) == purged


async def test_a_tenant_that_was_renamed_or_replaced_is_not_taken_for_another(bench: PurgeBench) -> None:
    gone = tenant(bench.control).id
    await bench.purges.delete("acme")
    await bench.control.sync.adopt((await bench.control.store.create_tenant("acme")).state)
    before = tenant(bench.control)
    with pytest.raises(NotFoundError, match="deleted"):
        await bench.purges.purge(gone, EVERYTHING)
    assert tenant(bench.control) == before


async def test_purging_twice_is_fine(bench: PurgeBench) -> None:
    roots = [root(bench.control)]
    for _ in range(2):
        await bench.purges.purge(tenant(bench.control).id, PartitionScope("p"))
        roots.append(root(bench.control))
    assert len(set(roots)) == 3
