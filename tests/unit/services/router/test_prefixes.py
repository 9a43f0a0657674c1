"""Prefixes and pins over several workers: who is asked, what their answers make together, when that is not enough."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from stemcache.v1 import cache_pb2, inference_pb2
from stemcache.worker.v1 import worker_pb2

from cache_store.clock import ManualClock
from cache_store.departures import Departures
from cache_store.digest import chain
from cache_store.domain import derive_domain
from cache_store.errors import (
    ComputationError,
    LimitExceededError,
    PreconditionError,
    StemcacheError,
    UnavailableError,
    WorkerLostError,
)
from cache_store.events import BlockChange, BlockEvent
from cache_store.index import IndexUnavailableError
from cache_store.memory_index import MemoryIndex
from cache_store.memory_registry import MemoryRegistry
from cache_store.registry import WorkerRecord
from cache_store.tokens import pack
from services.router.cache_validation import prefix_spec
from services.router.heat import PrefixHeat
from services.router.messages import timestamp
from services.router.outlook import OutlookMaker
from services.router.planning import Planner
from services.router.prefixes import MAX_ASKED, Prefixes
from services.router.registry_view import RegistryView
from services.router.speculations import Speculations
from services.router.tokenizers import Tokenizers
from services.router.worker_questions import Questioner
from services.tenants.directory import TenantDirectory
from services.tenants.model import new_tenant
from tests.support.worker_records import not_there, worker_record

ACME = new_tenant("acme", 0.0)
TOKENS = pack(range(100))
"""Six full blocks of 16 tokens, and four tokens."""
SPEC = prefix_spec(
    cache_pb2.LookupPrefixRequest(prompt=inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(packed=TOKENS)))
)


@dataclass
class ScriptedWorker:
    """Answers as a worker that holds so many tokens; fails with `error` where there is one."""

    holds: int = 0
    pins: dict[str, worker_pb2.WorkerPin] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    error: StemcacheError | None = None
    limit: int = 100

    async def LookupPrefix(self, message: Any, timeout: float) -> Any:  # noqa: N802
        self._enter("lookup")
        return worker_pb2.LookupPrefixResponse(
            matched_tokens=self.holds, matched_by_tier=inference_pb2.CachedByTier(device_tokens=self.holds)
        )

    async def PinPrefix(self, message: Any, timeout: float) -> Any:  # noqa: N802
        self._enter("pin")
        num_blocks = self.holds // 16
        if num_blocks > self.limit:
            raise LimitExceededError("pinned blocks", "too many", 7.0)
        self.pins[message.pin_id] = worker_pb2.WorkerPin(
            pin_id=message.pin_id, block_count=num_blocks, expire_time=message.expire_time
        )
        return worker_pb2.PinPrefixResponse(block_count=num_blocks)

    async def UnpinPrefix(self, message: Any, timeout: float) -> Any:  # noqa: N802
        self._enter("unpin")
        return worker_pb2.UnpinPrefixResponse(was_pinned=self.pins.pop(message.pin_id, None) is not None)

    async def ListPins(self, message: Any, timeout: float) -> Any:  # noqa: N802
        self._enter("list")
        return worker_pb2.ListPinsResponse(pins=list(self.pins.values()))

    def _enter(self, name: str) -> None:
        self.asked.append(name)
        if self.error is not None:
            raise self.error


class AwayIndex(MemoryIndex):
    async def lookup(self, *_: object) -> Any:
        raise IndexUnavailableError("away")


class Bench:
    """A router's part over scripted workers: the index says what `promise` told it."""

    def __init__(self, index: MemoryIndex | None = None) -> None:
        self.clock = ManualClock()
        self.registry = MemoryRegistry(self.clock)
        self.index = index or MemoryIndex()
        directory = TenantDirectory(self.clock)
        directory.confirm(self.clock.monotonic_s())
        self.view = RegistryView(self.registry, self.clock, {}, lambda _: None, not_there)
        planner = Planner(
            directory,
            Tokenizers({}),
            self.view,
            self.index,
            Speculations(self.clock),
            OutlookMaker(Departures(self.clock), self.clock),
            PrefixHeat(self.clock),
        )
        self.workers: dict[str, ScriptedWorker] = {}
        self.prefixes = Prefixes(planner, self.view, Questioner(self, b"k" * 32, self.view.token_expiry_s), self.clock)  # type: ignore[arg-type]

    async def ask(self, worker: WorkerRecord, question: Callable[[Any], Awaitable[Any]]) -> Any:
        """As `WorkerPool.ask`."""
        return await question(self.workers[worker.worker_id])

    async def add(self, name: str, worker: ScriptedWorker, promised: int = 0, **fields: Any) -> ScriptedWorker:
        """A worker, of which the index promises so many tokens."""
        record = worker_record(name, **fields)
        await self.registry.renew(record)
        await self.view.poll()
        self.workers[name] = worker
        if promised:
            domain = derive_domain(ACME.secret, ACME.id, ACME.epoch, "", record.kv_format)
            digests = b"".join(chain(domain, TOKENS, 16)[: promised // 16])
            event = BlockEvent(domain.tag, 0, BlockChange.STORED, digests)
            await self.index.apply(record.incarnation, [event])
        return worker

    async def pin(self) -> Any:
        return await self.prefixes.pin(ACME, SPEC, 60.0, "n", None)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_lookup_asks_whom_the_index_names_and_believes_the_worker(bench: Bench) -> None:
    await bench.add("a", ScriptedWorker(holds=50), promised=96)
    await bench.add("b", ScriptedWorker(holds=70), promised=64)
    unnamed = await bench.add("c", ScriptedWorker(holds=96))
    found = await bench.prefixes.lookup(ACME, SPEC, None)
    assert (found.prompt_tokens, found.matched.total, found.matched_blocks) == (100, 70, 4)
    assert unnamed.asked == []


async def test_a_lookup_leaves_out_who_takes_no_requests(bench: Bench) -> None:
    draining = await bench.add("a", ScriptedWorker(holds=96), promised=96, draining=True)
    suspected = await bench.add("b", ScriptedWorker(holds=96), promised=96)
    bench.view.suspect(worker_record("b").incarnation)
    assert (await bench.prefixes.lookup(ACME, SPEC, None)).matched.total == 0
    assert draining.asked == suspected.asked == []


async def test_a_lookup_is_whole_where_one_answered_and_none_where_nobody_did(bench: Bench) -> None:
    lost = await bench.add("a", ScriptedWorker(error=WorkerLostError("gone")), promised=96)
    with pytest.raises(UnavailableError, match="1 of 1 workers"):
        await bench.prefixes.lookup(ACME, SPEC, None)
    await bench.add("b", ScriptedWorker(holds=64), promised=64)
    assert (await bench.prefixes.lookup(ACME, SPEC, None)).matched.total == 64
    assert lost.asked == ["lookup", "lookup"]


async def test_a_pin_stands_where_the_longest_match_is(bench: Bench) -> None:
    await bench.add("a", ScriptedWorker(holds=96), promised=96)
    await bench.add("b", ScriptedWorker(holds=96), promised=96)
    shorter = await bench.add("c", ScriptedWorker(holds=80), promised=80)
    pin = await bench.pin()
    assert (pin.num_workers, pin.num_blocks, pin.size_bytes) == (2, 6, 2 * 96 * 64)
    assert pin.expires_unix_s == bench.clock.unix_s() + 60
    assert [len(worker.pins) for worker in bench.workers.values()] == [1, 1, 0]
    assert shorter.asked == []


async def test_what_the_index_does_not_know_yet_is_asked_for(bench: Bench) -> None:
    await bench.add("a", ScriptedWorker(holds=48), promised=48)
    await bench.add("b", ScriptedWorker(holds=96))
    assert (await bench.pin()).num_blocks == 6
    assert [len(worker.pins) for worker in bench.workers.values()] == [0, 1]


async def test_where_the_index_promised_too_much_others_are_asked(bench: Bench) -> None:
    await bench.add("a", ScriptedWorker(holds=0), promised=96)
    await bench.add("b", ScriptedWorker(holds=80), promised=80)
    assert (await bench.pin()).num_blocks == 5


async def test_a_block_that_went_between_question_and_pin_leaves_no_shorter_pin_behind(bench: Bench) -> None:
    class Shrinking(ScriptedWorker):
        async def LookupPrefix(self, message: Any, timeout: float) -> Any:  # noqa: N802
            answer = await super().LookupPrefix(message, timeout)
            self.holds = 80
            return answer

    await bench.add("a", ScriptedWorker(holds=96), promised=96)
    shrinking = await bench.add("b", Shrinking(holds=96), promised=96)
    pin = await bench.pin()
    assert (pin.num_workers, pin.num_blocks) == (1, 6)
    assert shrinking.pins == {}
    assert shrinking.asked == ["lookup", "pin", "unpin"]


async def test_nothing_cached_is_a_state_and_not_known_is_an_outage(bench: Bench) -> None:
    await bench.add("a", ScriptedWorker())
    with pytest.raises(PreconditionError, match="warm it first"):
        await bench.pin()
    await bench.add("b", ScriptedWorker(error=UnavailableError("starts", 1.0)))
    with pytest.raises(UnavailableError, match="1 of 2 workers"):
        await bench.pin()


async def test_a_limit_of_the_tenant_is_told_unless_another_worker_pinned(bench: Bench) -> None:
    await bench.add("a", ScriptedWorker(holds=96, limit=3), promised=96)
    with pytest.raises(LimitExceededError) as error:
        await bench.pin()
    assert error.value.retry_after_s == 7.0
    await bench.add("b", ScriptedWorker(holds=96), promised=96)
    assert (await bench.pin()).num_workers == 1


async def test_a_bounded_number_of_workers_is_asked_that_the_index_does_not_name(bench: Bench) -> None:
    for number in range(2 * MAX_ASKED):
        await bench.add(f"w{number}", ScriptedWorker())
    with pytest.raises(PreconditionError):
        await bench.pin()
    assert sum(len(worker.asked) for worker in bench.workers.values()) == MAX_ASKED


async def test_without_the_index_all_are_asked() -> None:
    bench = Bench(AwayIndex())
    for number in range(2 * MAX_ASKED):
        await bench.add(f"w{number:02}", ScriptedWorker(holds=96 if number == 2 * MAX_ASKED - 1 else 0))
    assert (await bench.pin()).num_blocks == 6
    assert (await bench.prefixes.lookup(ACME, SPEC, None)).matched.total == 0


async def test_a_list_is_merged_by_id_and_in_the_order_of_ends(bench: Bench) -> None:
    def pins(**ends_s: float) -> dict[str, worker_pb2.WorkerPin]:
        return {
            name: worker_pb2.WorkerPin(
                pin_id=name, display_name=f"of {name}", block_count=2, expire_time=timestamp(end)
            )
            for name, end in ends_s.items()
        }

    await bench.add("a", ScriptedWorker(pins=pins(p=30.0, q=20.0)))
    await bench.add("b", ScriptedWorker(pins=pins(p=30.0)))
    await bench.add("c", ScriptedWorker(pins=pins(r=10.0)), model="other", kv_format=b"g" * 16)
    listed = await bench.prefixes.pins(ACME, None)
    assert [(pin.pin_id, pin.model, pin.num_workers, pin.num_blocks) for pin in listed] == [
        ("r", "other", 1, 2),
        ("q", "m", 1, 2),
        ("p", "m", 2, 2),
    ]
    assert listed[2].size_bytes == 2 * 2 * 16 * 64


async def test_an_answer_that_lacks_a_worker_is_no_answer(bench: Bench) -> None:
    await bench.add("a", ScriptedWorker(pins={"p": worker_pb2.WorkerPin(pin_id="p", block_count=1)}))
    silent = await bench.add("b", ScriptedWorker(error=WorkerLostError("gone")))
    for asked in (bench.prefixes.pins(ACME, None), bench.prefixes.unpin(ACME, "p", None)):
        with pytest.raises(UnavailableError, match="1 of 2 workers did not answer"):
            await asked
    silent.error = ComputationError("broken")
    with pytest.raises(ComputationError):
        await bench.prefixes.pins(ACME, None)
    silent.error = None
    assert await bench.prefixes.pins(ACME, None) == ()
    assert not await bench.prefixes.unpin(ACME, "p", None)


async def test_without_any_worker_nothing_is_said(bench: Bench) -> None:
    for asked in (bench.pin(), bench.prefixes.pins(ACME, None), bench.prefixes.lookup(ACME, SPEC, None)):
        with pytest.raises(UnavailableError):
            await asked
