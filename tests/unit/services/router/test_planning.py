"""Plans: which model is meant, what fits, whose domain, who holds the prefix; and what is done without the index."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cache_store.clock import ManualClock
from cache_store.departures import Departures
from cache_store.digest import chain
from cache_store.domain import DomainTag, derive_domain
from cache_store.errors import InvalidRequestError, NotFoundError, UnavailableError
from cache_store.events import BlockChange, BlockEvent
from cache_store.index import Incarnation, IndexUnavailableError
from cache_store.memory_index import MemoryIndex
from cache_store.memory_registry import MemoryRegistry
from cache_store.quota import TenantQuota, TierShare
from cache_store.registry import WorkerRecord
from cache_store.tier_kind import TierKind
from cache_store.tokens import PackedTokens, pack
from services.router.generation import CacheMode, EndTokens, GenerationSpec, Prompt, Sampling, TextPrompt, TokenPrompt
from services.router.heat import PrefixHeat
from services.router.outlook import OutlookMaker
from services.router.planning import DEFAULT_MAX_TOKENS, Planner
from services.router.registry_view import RegistryView
from services.router.speculations import Speculations
from services.router.tokenizers import Tokenizers, load_tokenizers
from services.tenants.directory import CONTROL_AGE_BOUND_S, TenantDirectory
from services.tenants.model import new_tenant
from services.tenants.purge import PartitionScope, new_purge, purged
from services.tenants.state import ControlState
from services.tenants.table import table_of
from tests.support.tokenizer_folder import write_tokenizer_folder
from tests.support.worker_records import not_there, worker_record

ACME = new_tenant("acme", 0.0)
PROMPT = pack(range(2, 50))


class AwayIndex:
    async def lookup(
        self, domain_tag: DomainTag, digests: bytes, incarnations: Sequence[Incarnation]
    ) -> Mapping[Incarnation, int]:
        raise IndexUnavailableError("away", {Incarnation("a"): 1})


class Bench:
    def __init__(self, tokenizers: Tokenizers) -> None:
        self.clock = ManualClock()
        self.registry = MemoryRegistry(self.clock)
        self.index = MemoryIndex()
        self.tokenizers = tokenizers
        self.directory = TenantDirectory(self.clock)
        self.directory.confirm(self.clock.monotonic_s())
        self.view = RegistryView(self.registry, self.clock, {}, lambda _: None, not_there)
        self.speculations = Speculations(self.clock)
        self.outlooks = OutlookMaker(Departures(self.clock), self.clock)
        self.heat = PrefixHeat(self.clock)
        self.planner = Planner(
            self.directory, tokenizers, self.view, self.index, self.speculations, self.outlooks, self.heat
        )

    def named(self, name: str) -> str:
        return self.planner.models.named(ACME.id, name).name

    async def workers(self, *records: WorkerRecord) -> None:
        for record in records:
            await self.registry.renew(record)
        await self.view.poll()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    tokenizers = Tokenizers({})
    yield Bench(tokenizers)
    tokenizers.close()


def spec(
    prompt: Prompt = TokenPrompt(PROMPT),  # noqa: B008 - frozen
    *,
    model: str = "",
    partition: str = "",
    cache_mode: CacheMode = CacheMode.READ_WRITE,
    max_tokens: int | None = None,
    min_tokens: int = 0,
    stop: tuple[str, ...] = (),
) -> GenerationSpec:
    sampling = Sampling(0.0, 1.0, 0, None, max_tokens, min_tokens, stop, (), EndTokens.STOP, 1)
    return GenerationSpec(None, model, prompt, sampling, cache_mode, partition)


async def test_an_empty_name_means_the_only_model(bench: Bench) -> None:
    with pytest.raises(UnavailableError):
        bench.named("")
    await bench.workers(worker_record("a", model="one"))
    assert bench.named("") == bench.named("one") == "one"
    await bench.workers(worker_record("b", model="two"))
    with pytest.raises(InvalidRequestError, match="one, two"):
        bench.named("")
    with pytest.raises(NotFoundError, match="served are: one, two"):
        bench.named("three")


async def test_a_model_whose_workers_are_away_is_unavailable_and_not_unknown(tmp_path: Path) -> None:
    tokenizers = load_tokenizers({"m": write_tokenizer_folder(tmp_path)})
    bench = Bench(tokenizers)
    with pytest.raises(UnavailableError, match="'m'"):
        await bench.planner.plan(ACME, spec(TextPrompt("x"), model="m"))
    tokenizers.close()


async def test_the_index_is_asked_by_the_tenants_own_domain(bench: Bench) -> None:
    record = worker_record("a")
    await bench.workers(record, worker_record("b"))
    domain = derive_domain(ACME.secret, ACME.id, ACME.epoch, "p", record.kv_format, record.model)
    event = BlockEvent(domain.tag, 0, BlockChange.STORED, b"".join(chain(domain, PROMPT, 16)[:2]))
    await bench.index.replace(record.incarnation, {})
    await bench.index.apply(record.incarnation, [event])

    hit = await bench.planner.plan(ACME, spec(partition="p"))
    assert (hit.matched_tokens[Incarnation("a")], hit.matched_tokens[Incarnation("b")]) == (32, 0)
    assert hit.domains == {record.kv_format: domain}
    assert not hit.degraded
    other_partition = await bench.planner.plan(ACME, spec())
    other_tenant = await bench.planner.plan(new_tenant("acme", 0.0), spec(partition="p"))
    bypass = await bench.planner.plan(ACME, spec(partition="p", cache_mode=CacheMode.BYPASS))
    assert not any(any(plan.matched_tokens.values()) for plan in (other_partition, other_tenant, bypass))


async def test_requests_that_begin_alike_heat_what_is_held_of_them_and_no_other_tenants(bench: Bench) -> None:
    record = worker_record("a")
    await bench.workers(record)
    await bench.index.replace(record.incarnation, {})
    globex = new_tenant("globex", 0.0)
    for tenant in (ACME, globex):
        domain = derive_domain(tenant.secret, tenant.id, tenant.epoch, "", record.kv_format, record.model)
        event = BlockEvent(
            domain.tag, 0 if tenant is ACME else 1, BlockChange.STORED, b"".join(chain(domain, PROMPT, 16)[:2])
        )
        await bench.index.apply(record.incarnation, [event])
    asked = [PROMPT[: 32 * 4] + pack([number] * 16) for number in range(4)]
    heats = [(await bench.planner.plan(ACME, spec(TokenPrompt(PackedTokens(each))))).heat for each in asked]
    assert heats == [0.0, 1.0, 2.0, 3.0]
    assert (await bench.planner.plan(globex, spec())).heat == 0.0
    unknown = TokenPrompt(pack(range(100, 150)))
    assert [(await bench.planner.plan(ACME, spec(unknown))).heat for _ in range(2)] == [0.0, 0.0], "nobody holds it"


async def test_a_prompt_that_is_on_its_way_to_a_worker_counts_for_its_own_domain(bench: Bench) -> None:
    record = worker_record("a")
    await bench.workers(record, worker_record("b"))
    first = await bench.planner.plan(ACME, spec(partition="p"))
    domain, digests = first.domains[record.kv_format], first.chains[record.kv_format]
    bench.speculations.add(domain.tenant, domain.tag, record.incarnation, digests[:32], 0.0)
    second = await bench.planner.plan(ACME, spec(partition="p"))
    assert second.matched_tokens == {"a": 32, "b": 0}
    other = await bench.planner.plan(ACME, spec(partition="q"))
    assert not any(other.matched_tokens.values())


async def test_workers_of_different_formats_have_different_domains(bench: Bench) -> None:
    await bench.workers(worker_record("a"), worker_record("b", kv_format=b"g" * 16, block_size=8))
    plan = await bench.planner.plan(ACME, spec())
    assert len({domain.root for domain in plan.domains.values()}) == 2
    assert set(plan.matched_tokens) == {"a", "b"}


async def test_without_the_index_it_is_degraded_and_goes_on(bench: Bench) -> None:
    await bench.workers(worker_record("a"))
    planner = Planner(
        bench.directory, bench.tokenizers, bench.view, AwayIndex(), bench.speculations, bench.outlooks, bench.heat
    )
    plan = await planner.plan(ACME, spec())
    assert (plan.degraded, plan.cache_mode) == (True, CacheMode.READ_WRITE)
    assert plan.matched_tokens == {"a": 16}, "what was known before"


async def test_with_old_control_data_nothing_is_reused(bench: Bench) -> None:
    await bench.workers(worker_record("a"))
    bench.clock.advance(CONTROL_AGE_BOUND_S + 0.1)
    plan = await bench.planner.plan(ACME, spec(cache_mode=CacheMode.READ_WRITE))
    assert (plan.degraded, plan.cache_mode) == (True, CacheMode.BYPASS)


async def test_without_max_tokens_what_fits_is_taken(bench: Bench) -> None:
    await bench.workers(worker_record("a", max_model_len=100), worker_record("b", max_model_len=300))
    assert (await bench.planner.plan(ACME, spec())).max_tokens == 252
    await bench.workers(worker_record("c", max_model_len=9_000, num_blocks=900))
    assert (await bench.planner.plan(ACME, spec())).max_tokens == DEFAULT_MAX_TOKENS
    assert (await bench.planner.plan(ACME, spec(min_tokens=600))).max_tokens == 600
    assert (await bench.planner.plan(ACME, spec(max_tokens=7))).max_tokens == 7
    with pytest.raises(InvalidRequestError, match="at most 8952"):
        await bench.planner.plan(ACME, spec(min_tokens=9_000))


async def test_a_tenants_part_bounds_what_fits_and_strict_ones_are_routed_by_their_own_state(bench: Bench) -> None:
    await bench.workers(worker_record("a", max_model_len=9_000, num_blocks=40))
    strict = replace(ACME, quota=TenantQuota({TierKind.DEVICE: TierShare(0.25, 0.25)}), quota_number=1)
    lax = new_tenant("globex", 0.0)
    bench.directory.install(ControlState(None, table_of((strict, lax), (), ())))
    own, beside = await bench.planner.plan(strict, spec()), await bench.planner.plan(lax, spec())
    assert (own.max_tokens, beside.max_tokens) == (10 * 16 - 48 + 1, 30 * 16 - 48 + 1)
    assert (own.part.share.is_strict, beside.part.share.is_strict) == (True, False)
    assert own.affinity != beside.affinity
    bench.directory.install(ControlState(None, table_of((lax,), (), ())))
    assert (await bench.planner.plan(lax, spec())).max_tokens == DEFAULT_MAX_TOKENS


async def test_a_model_without_text_has_no_stop_strings(bench: Bench) -> None:
    await bench.workers(worker_record("a"))
    with pytest.raises(InvalidRequestError, match="stop_token_ids") as error:
        await bench.planner.plan(ACME, spec(stop=("x",)))
    assert error.value.field == "sampling_params.stop"


async def test_seeds_are_assigned_and_differ(bench: Bench) -> None:
    await bench.workers(worker_record("a"))
    seeds = {(await bench.planner.plan(ACME, spec())).seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**64 for seed in seeds)


async def test_a_plan_that_waited_asks_for_the_new_domain(bench: Bench) -> None:
    await bench.workers(worker_record("a"))
    bench.directory.install(ControlState(None, table_of([ACME], [], [])))
    plan = await bench.planner.plan(ACME, spec(partition="p"))
    purged_p, purged_q = (purged(ACME, new_purge(PartitionScope(each), 1.0)) for each in "pq")

    bench.directory.install(ControlState(None, table_of([purged_q], [], [])))
    assert bench.planner.renewed(plan, ACME, spec(partition="p")).domains == plan.domains
    bench.directory.install(ControlState(None, table_of([purged_p], [], [])))
    renewed = bench.planner.renewed(plan, ACME, spec(partition="p"))
    assert renewed.known.tenant.fence == purged_p.fence
    assert renewed.domains != plan.domains
    assert renewed.domains == (await bench.planner.plan(ACME, spec(partition="p"))).domains


async def test_a_plan_that_waited_until_the_control_data_was_too_old_reuses_nothing(bench: Bench) -> None:
    await bench.workers(worker_record("a"))
    plan = await bench.planner.plan(ACME, spec())
    assert plan.cache_mode is CacheMode.READ_WRITE
    assert bench.planner.renewed(plan, ACME, spec()) == plan
    bench.clock.advance(CONTROL_AGE_BOUND_S + 1)
    renewed = bench.planner.renewed(plan, ACME, spec())
    assert (renewed.cache_mode, renewed.degraded) == (CacheMode.BYPASS, True)
