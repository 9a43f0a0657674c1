"""A worker follows published quotas forward only, and keeps what it has whatever stands there."""

from __future__ import annotations

import asyncio
from types import MappingProxyType

import pytest

from cache_store.adapters import Adapter
from cache_store.domain import Epoch, TenantId
from cache_store.fence import Fence, FenceTable
from cache_store.quota import QuotaTable, TenantQuota, TierShare
from cache_store.quota_document import QuotaDocument
from cache_store.tier_kind import TierKind
from tests.support.memory_quotas import MemoryQuotas
from tests.support.quotas import quota_document
from worker.quota_watch import QuotaWatch

KEY = b"k" * 32
ACME = TenantId("acme")


class Applied:
    """What was handed to the engine; fails `num_failures` times first."""

    def __init__(self) -> None:
        self.tables: list[QuotaTable] = []
        self.fences: list[FenceTable] = []
        self.adapters: list[tuple[Adapter, ...]] = []
        self.num_failures = 0
        self.num_reads = 0

    async def __call__(self, quotas: QuotaTable) -> None:
        if self.num_failures:
            self.num_failures -= 1
            raise TimeoutError
        self.tables.append(quotas)

    def note_read(self) -> None:
        self.num_reads += 1

    async def take_fences(self, fences: FenceTable) -> None:
        self.fences.append(fences)

    @property
    def guarantees(self) -> list[float]:
        return [table.of(ACME).share(TierKind.DEVICE).minimum for table in self.tables]


@pytest.fixture
def source() -> MemoryQuotas:
    return MemoryQuotas()


@pytest.fixture
def applied() -> Applied:
    return Applied()


@pytest.fixture
def watch(source: MemoryQuotas, applied: Applied) -> QuotaWatch:
    return QuotaWatch(source, KEY, applied, applied.take_fences, applied.adapters.append, applied.note_read, poll_s=0.0)


def document(
    generation: int, minimum: float, publish_s: float = 1.0, store_id: str = "s", key: bytes = KEY
) -> QuotaDocument:
    quota = TenantQuota(MappingProxyType({TierKind.DEVICE: TierShare(minimum)}))
    return quota_document(key, store_id, QuotaTable(generation, MappingProxyType({ACME: quota})), publish_s)


async def test_before_anything_is_published_there_are_defaults(watch: QuotaWatch, applied: Applied) -> None:
    await watch.poll()
    assert (watch.generation, applied.tables, applied.num_reads) == (0, [], 1)


async def test_each_change_is_handed_on_once(watch: QuotaWatch, source: MemoryQuotas, applied: Applied) -> None:
    for generation, minimum in ((3, 0.25), (4, 0.5)):
        source.document = document(generation, minimum)
        for _ in range(3):
            await watch.poll()
        assert watch.generation == generation
    assert applied.guarantees == [0.25, 0.5]
    assert source.num_bodies_read == 2


async def test_a_later_generation_of_equal_quotas_does_not_bother_the_engine(
    watch: QuotaWatch, source: MemoryQuotas, applied: Applied
) -> None:
    for generation, publish_s in ((3, 1.0), (4, 1.0), (4, 2.0)):
        source.document = document(generation, 0.25, publish_s)
        await watch.poll()
    assert (watch.generation, applied.guarantees) == (4, [0.25])


@pytest.mark.parametrize(
    "old",
    [document(2, 0.0), document(2, 0.0, 9.0), document(3, 0.0), document(9, 0.0, 1.0, "another")],
    ids=["older", "older, published later", "as old, published as late", "another store's, not later"],
)
async def test_a_replay_takes_no_guarantee_away(
    watch: QuotaWatch, source: MemoryQuotas, applied: Applied, old: QuotaDocument
) -> None:
    source.document = document(3, 0.25)
    await watch.poll()
    source.document = old
    await watch.poll()
    assert (watch.generation, applied.guarantees) == (3, [0.25])
    source.document = document(4, 0.5)
    await watch.poll()
    assert applied.guarantees == [0.25, 0.5]


async def test_a_store_that_took_the_place_of_a_lost_one_is_followed(
    watch: QuotaWatch, source: MemoryQuotas, applied: Applied
) -> None:
    source.document = document(50, 0.25)
    await watch.poll()
    source.document = document(1, 0.5, 2.0, "another")
    await watch.poll()
    assert (watch.generation, applied.guarantees) == (1, [0.25, 0.5])
    source.document = document(50, 0.25)
    await watch.poll()
    assert watch.generation == 1


async def test_a_store_that_comes_again_goes_on_from_where_it_was(
    watch: QuotaWatch, source: MemoryQuotas, applied: Applied
) -> None:
    for published in (document(50, 0.25), document(1, 0.5, 2.0, "another"), document(49, 0.0, 3.0)):
        source.document = published
        await watch.poll()
    assert (watch.generation, applied.guarantees) == (1, [0.25, 0.5])
    source.document = document(50, 0.25, 4.0)
    await watch.poll()
    assert (watch.generation, applied.guarantees) == (50, [0.25, 0.5, 0.25])


@pytest.mark.parametrize(
    "bad",
    [
        None,
        QuotaDocument(b"", b""),
        QuotaDocument(b"nonsense", b"nonsense"),
        document(9, 0.0, 9.0, key=b"o" * 32),
        QuotaDocument(document(9, 0.0, 9.0).head, document(3, 0.25).body),
    ],
    ids=["gone", "empty", "nonsense", "of another cluster", "another body"],
)
async def test_what_cannot_be_believed_changes_nothing(
    watch: QuotaWatch, source: MemoryQuotas, applied: Applied, bad: QuotaDocument | None
) -> None:
    source.document = document(3, 0.25)
    await watch.poll()
    source.document = bad
    for _ in range(3):
        await watch.poll()
    assert (watch.generation, applied.guarantees) == (3, [0.25])
    source.document = document(4, 0.5)
    await watch.poll()
    assert (watch.generation, applied.guarantees) == (4, [0.25, 0.5])


async def test_it_is_told_when_what_is_published_was_read_and_is_in_force(
    watch: QuotaWatch, source: MemoryQuotas, applied: Applied
) -> None:
    async def polls() -> int:
        before = applied.num_reads
        await watch.poll()
        await watch.poll()
        return applied.num_reads - before

    assert await polls() == 2, "nothing was ever published"
    source.document = document(3, 0.25)
    assert await polls() == 2
    source.document = document(3, 0.25, 2.0)
    assert await polls() == 2, "published again"
    for other in (document(2, 0.0), document(9, 0.0, key=b"o" * 32), QuotaDocument(b"", b""), None):
        source.document = other
        assert await polls() == 0, "what is newest is not known"
    source.document = document(4, 0.5)
    assert await polls() == 2
    source.reachable = False
    assert await polls() == 0
    source.reachable = True
    source.document = document(5, 0.25)
    applied.num_failures = 1
    assert await polls() == 1, "not before it is in force"


async def test_what_is_refused_is_read_once(watch: QuotaWatch, source: MemoryQuotas) -> None:
    source.document = document(9, 0.0, key=b"o" * 32)
    for _ in range(3):
        await watch.poll()
    assert source.num_bodies_read == 1


async def test_a_source_that_is_away_changes_nothing_and_is_asked_again(
    watch: QuotaWatch, source: MemoryQuotas, applied: Applied
) -> None:
    source.document = document(3, 0.25)
    await watch.poll()
    source.document = document(4, 0.5)
    source.reachable = False
    await watch.poll()
    assert watch.generation == 3
    source.reachable = True
    await watch.poll()
    assert applied.guarantees == [0.25, 0.5]


async def test_what_the_engine_did_not_take_is_handed_to_it_again(
    watch: QuotaWatch, source: MemoryQuotas, applied: Applied
) -> None:
    source.document = document(3, 0.25)
    applied.num_failures = 1
    await watch.poll()
    assert watch.generation == 0
    await watch.poll()
    assert (watch.generation, applied.guarantees) == (3, [0.25])


async def test_the_task_follows_until_cancelled(watch: QuotaWatch, source: MemoryQuotas, applied: Applied) -> None:
    task = asyncio.create_task(watch.run())
    source.document = document(3, 0.25)
    while not applied.tables:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_fences_are_handed_on_with_their_generation(
    watch: QuotaWatch, source: MemoryQuotas, applied: Applied
) -> None:
    fence = Fence(ACME, Epoch("e"), 3)
    source.document = quota_document(KEY, "s", QuotaTable(4, {}), 1.0, [fence])
    await watch.poll()
    assert applied.fences == [FenceTable(4, {ACME: fence})]


async def test_an_old_document_that_is_put_back_brings_no_old_fence(
    watch: QuotaWatch, source: MemoryQuotas, applied: Applied
) -> None:
    new, old = (quota_document(KEY, "s", QuotaTable(n, {}), n, [Fence(ACME, Epoch("e"), n)]) for n in (5, 4))
    for source.document in (new, old):
        await watch.poll()
    assert [table.generation for table in applied.fences] == [5]


async def test_a_newer_head_of_the_same_body_is_taken_without_reading_the_body(
    watch: QuotaWatch, source: MemoryQuotas, applied: Applied
) -> None:
    for number in (1, 2, 3):
        source.document = quota_document(KEY, "s", QuotaTable(number, {}), number, [Fence(ACME, Epoch("e"), 1)])
        await watch.poll()
    assert (watch.generation, source.num_bodies_read, len(applied.fences)) == (3, 1, 1)
