"""Blocks of other workers at the engine: fetched where it pays, compared, bounded, cancelled, not awaited for ever."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cache_store.domain import Domain, FormatDigest
from cache_store.errors import StemcacheError
from cache_store.quota import TierShare
from cache_store.tokens import pack
from cache_store.usage import CachedTokens
from tests.support.domains import make_domain
from tests.support.engines import ACME, GLOBEX
from tests.support.fences import fenced_domain, make_fence
from tests.support.manual_peers import Answering, PeeredBench, link
from tests.support.manual_transfers import Fate, ManualMaker, always
from tests.support.quotas import make_table
from worker import fetches
from worker.digest_runner import Durations
from worker.engine_config import EngineConfig
from worker.requests import CacheMode, RequestKey

PROMPT = range(100, 141)
"""10 full blocks of 4, and a token."""


def benches(**options: object) -> tuple[PeeredBench, PeeredBench]:
    """One that has the prompt of ACME, and one that has nothing."""
    holder, asker = PeeredBench("holder", **options), PeeredBench("asker", **options)
    link(holder, asker)
    holder.answer(PROMPT)
    return holder, asker


def ask(
    asker: PeeredBench, holder: PeeredBench, prompt: Iterable[int] = PROMPT, domain: Domain = ACME, **options: object
) -> RequestKey:
    """Submits a request with a hint and runs as far as it goes without the holder's answer."""
    key = asker.submit(prompt, domain=domain, peer=holder.hint(10), **options)  # type: ignore[arg-type]
    asker.run_until_idle()
    return key


def test_what_a_peer_holds_is_reused_and_not_computed() -> None:
    holder, asker = benches()
    key = ask(asker, holder)
    assert not asker.answers[key].has_ended, "it did not wait"
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens(0, 0, 0, 40)
    assert asker.runner.num_computed == 1 + 7, "something was computed that came from the peer"
    counts = asker.engine.exchange.counts
    assert (counts.fetches, counts.fetched_blocks, counts.failed_fetches) == (1, 10, 0)
    assert counts.fetched_bytes == 10 * asker.engine.exchange.block_bytes
    assert holder.engine.exchange.counts.served_blocks == 10


def test_what_came_is_cached_like_what_was_computed() -> None:
    holder, asker = benches()
    ask(asker, holder)
    asker.peers.end_all()
    asker.run_until_idle()
    assert asker.answer(PROMPT).cached == CachedTokens(40)
    assert asker.engine.num_held_blocks == 0
    assert {digests for _, digests in asker.engine.snapshot().items()} == {
        digests for _, digests in holder.engine.snapshot().items()
    }


def test_another_tenant_gets_nothing_of_it() -> None:
    holder, asker = benches()
    key = ask(asker, holder, domain=GLOBEX)
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens()
    assert holder.engine.exchange.counts.served_blocks == 0
    own = ask(asker, holder)
    asker.peers.end_all()
    asker.run_until_idle()
    assert asker.answers[own].cached == CachedTokens(0, 0, 0, 40)


@pytest.mark.parametrize(
    "other",
    [
        make_domain("acme", epoch="later"),
        make_domain("acme", partition="p"),
        make_domain("acme", kv_format=FormatDigest(b"o" * 16)),
    ],
    ids=["epoch", "partition", "format"],
)
def test_neither_does_another_domain_of_the_tenant(other: Domain) -> None:
    holder, asker = benches()
    key = ask(asker, holder, domain=other)
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens()


def test_blocks_come_up_to_the_first_token_that_differs() -> None:
    holder, asker = benches()
    key = ask(asker, holder, prompt=[*PROMPT[:18], 7, *PROMPT[19:]])
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens(0, 0, 0, 16)


def test_the_last_token_is_computed() -> None:
    holder, asker = benches()
    key = ask(asker, holder, prompt=PROMPT[:40])
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens(0, 0, 0, 36)


def test_what_follows_its_own_blocks_is_fetched() -> None:
    holder, asker = benches()
    asker.answer(PROMPT[:13])
    key = ask(asker, holder)
    (order,) = asker.peers.pending.values()
    assert (order.first_block, order.num_blocks) == (3, 7)
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens(12, 0, 0, 28)


def test_blocks_in_the_holders_host_memory_are_given_as_well() -> None:
    holder = PeeredBench("holder", num_blocks=14, num_host_blocks=32, make_mover=ManualMaker(decide=always))
    asker = PeeredBench("asker")
    link(holder, asker)
    holder.answer(PROMPT)
    holder.answer(range(400, 441))
    assert holder.engine.lookup(ACME, holder.requests[RequestKey(0)].prompt).host > 0
    key = ask(asker, holder)
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens(0, 0, 0, 40)


@pytest.mark.parametrize(
    ("how", "num_tokens"), [(Answering.CUT, 20), (Answering.SPOILT, 36), (Answering.FAILED, 0)], ids=str
)
def test_what_is_missing_or_spoilt_is_computed(how: Answering, num_tokens: int) -> None:
    holder, asker = benches()
    key = ask(asker, holder)
    asker.peers.end_all(how)
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens(0, 0, 0, num_tokens)
    assert asker.engine.exchange.counts.refused_blocks == (how is Answering.SPOILT)


def test_a_holder_that_has_lost_it_costs_a_miss() -> None:
    holder, asker = benches()
    key = ask(asker, holder)
    holder.engine.purge({ACME.tenant: None})
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens()


def test_nothing_is_held_while_blocks_are_on_their_way() -> None:
    holder, asker = benches()
    asker.answer(PROMPT[:13])
    ask(asker, holder)
    assert asker.engine.num_held_blocks == 0
    assert holder.engine.num_held_blocks == 0
    asker.peers.end_all()
    assert holder.engine.num_held_blocks == 0


def test_the_holder_makes_no_use_of_blocks_that_it_gives() -> None:
    holder, asker = benches(num_blocks=24)
    holder.answer(range(400, 441))
    ask(asker, holder)
    asker.peers.end_all()
    holder.answer(range(600, 641))
    assert holder.engine.lookup(ACME, holder.requests[RequestKey(1)].prompt).device > 0, "the older one has to go first"


def test_equal_prompts_wait_for_one_fetch() -> None:
    holder, asker = benches()
    first, second = (asker.submit(PROMPT, peer=holder.hint(10)) for _ in range(2))
    asker.run_until_idle()
    assert len(asker.peers.pending) == 1
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(first, second)
    assert asker.answers[second].cached is not None
    assert asker.answers[second].cached.total == 40


def test_who_has_no_hint_waits_for_a_fetch_that_runs() -> None:
    """A router that has sent one prompt here takes its blocks for held here, and names nobody with the next."""
    maker = ManualMaker()
    holder, asker = PeeredBench("holder"), PeeredBench("asker", make_mover=maker)
    link(holder, asker)
    holder.answer(PROMPT)
    first = ask(asker, holder)
    second = asker.submit(PROMPT)
    asker.run_until_idle()
    assert not asker.answers[second].has_ended
    asker.peers.end_all()
    third = asker.submit(PROMPT)
    asker.step()
    assert asker.answers[third].cached is None, "it is on its way from the buffers to the device"
    maker.transfers.decide = always
    asker.run_until_idle()
    asker.assert_exact(first, second, third)
    assert asker.runner.num_computed == 3 * (1 + 7)


def test_others_run_meanwhile() -> None:
    holder, asker = benches()
    key = ask(asker, holder)
    other = asker.submit(range(500, 520), domain=GLOBEX)
    asker.run_until_idle()
    assert asker.answers[other].has_ended
    assert not asker.answers[key].has_ended


def test_a_fetch_that_nobody_waits_for_any_more_is_cancelled() -> None:
    holder, asker = benches()
    first, second = (asker.submit(PROMPT, peer=holder.hint(10)) for _ in range(2))
    asker.run_until_idle()
    asker.cancel(first)
    assert asker.peers.pending, "another request waits for it"
    asker.cancel(second)
    assert not asker.peers.pending
    assert len(asker.peers.cancelled) == 1
    asker.engine.check_invariants()


def test_what_comes_after_a_cancel_is_ignored() -> None:
    holder, asker = benches()
    key = ask(asker, holder)
    (order,) = asker.peers.pending.values()
    late = asker.peers.answer(order, Answering.WELL, 0.001)
    asker.cancel(key)
    asker.peers.tell(late)
    asker.run_until_idle()
    assert asker.answer(PROMPT).cached == CachedTokens()


def test_a_purge_on_the_way_leaves_nothing_to_be_used() -> None:
    fence = make_fence("acme")
    old = fenced_domain(fence)
    holder, asker = PeeredBench("holder"), PeeredBench("asker")
    link(holder, asker)
    holder.answer(PROMPT, domain=old)
    key = ask(asker, holder, domain=old)
    (order,) = asker.peers.pending.values()
    late = asker.peers.answer(order, Answering.WELL, 0.001)
    asker.engine.purge({fence.tenant: make_fence("acme", 1)})
    assert not asker.peers.pending
    asker.peers.tell(late)
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens()
    assert not asker.engine.snapshot()
    asker.run_until_idle()
    assert not asker.written_slots(), "something of a purged domain stands in the pool"


def test_a_purge_between_arrival_and_the_device_leaves_nothing_to_be_used() -> None:
    fence = make_fence("acme")
    old = fenced_domain(fence)
    maker = ManualMaker()
    holder, asker = PeeredBench("holder"), PeeredBench("asker", make_mover=maker)
    link(holder, asker)
    holder.answer(PROMPT, domain=old)
    key = ask(asker, holder, domain=old)
    asker.peers.end_all()
    asker.step()
    assert asker.engine.num_loading == 10
    asker.engine.purge({fence.tenant: make_fence("acme", 1)})
    maker.transfers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens()
    assert not asker.engine.snapshot()


@pytest.mark.parametrize("epoch", [1, None], ids=["purged", "deleted"])
@pytest.mark.parametrize("how_far", ["ordered", "landed"])
def test_a_purge_sees_what_is_on_its_way_for_nobody(how_far: str, epoch: int | None) -> None:
    fence = make_fence("acme")
    old, other = fenced_domain(fence), fenced_domain(make_fence("globex"))
    maker = ManualMaker()
    holder, taker = PeeredBench("holder"), PeeredBench("taker", make_mover=maker)
    link(holder, taker)
    for domain in (old, other):
        holder.answer(PROMPT, domain=domain)
        assert taker.engine.exchange.adopt(holder.hint(10), domain, pack(PROMPT[:40])) is not None
    if how_far == "landed":
        taker.peers.end_all()
        taker.step()
        assert taker.engine.num_loading == 20
    dropped = taker.engine.purge({fence.tenant: None if epoch is None else make_fence("acme", epoch)})
    assert dropped.held_blocks == (10 if how_far == "landed" else 0)
    taker.peers.end_all()
    for _ in range(3):
        taker.step()
        maker.transfers.end_all()
    taker.run_until_idle()
    assert taker.engine.lookup(old, pack(PROMPT)) == CachedTokens(), "a purged block was revived"
    assert taker.engine.lookup(other, pack(PROMPT)) == CachedTokens(40)
    assert set(taker.engine.snapshot()) == {other.tag}
    assert len(taker.written_slots()) == 10, "something of a purged domain stands in the pool"


def test_a_load_of_what_came_that_fails_leaves_what_is_before_it() -> None:
    maker = ManualMaker()
    holder, asker = PeeredBench("holder"), PeeredBench("asker", make_mover=maker)
    link(holder, asker)
    holder.answer(PROMPT)
    key = ask(asker, holder)
    asker.peers.end_all()
    asker.step()
    for number, transfer in enumerate(maker.transfers.pending):
        maker.transfers.end(transfer, Fate.TEAR if number == 6 else Fate.OK)
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens(0, 0, 0, 24)


def test_what_arrives_where_its_beginning_has_gone_is_not_used() -> None:
    holder, asker = benches(num_blocks=14)
    asker.answer(PROMPT[:13])
    key = ask(asker, holder)
    asker.answer(range(700, 748), domain=GLOBEX)
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens()


def test_an_answer_that_never_comes_is_given_up() -> None:
    holder, asker = benches()
    key = ask(asker, holder)
    asker.clock.advance(60.0)
    asker.engine.tick()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert not asker.peers.pending
    assert asker.engine.exchange.counts.failed_fetches == 1


def test_a_peer_that_failed_is_not_asked_for_a_while() -> None:
    holder, asker = benches()
    ask(asker, holder)
    asker.peers.end_all(Answering.FAILED)
    asker.run_until_idle()
    asker.engine.purge({ACME.tenant: None})
    again = make_domain("acme", partition="p")
    key = ask(asker, holder, domain=again)
    asker.assert_exact(key)
    asker.clock.advance(60.0)
    ask(asker, holder, prompt=range(800, 841), domain=again)
    assert asker.peers.pending


def test_a_peer_that_goes_on_failing_rests_longer_each_time() -> None:
    holder, asker = benches()
    asks = []
    for number in range(12):
        prompt = range(200 + 50 * number, 241 + 50 * number)
        holder.answer(prompt)
        ask(asker, holder, prompt=prompt)
        asks.append(len(asker.peers.pending))
        asker.peers.end_all(Answering.FAILED)
        asker.run_until_idle()
        asker.clock.advance(0.6)
    assert asks == [1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]


def test_what_came_of_a_fetch_that_failed_tells_its_speed() -> None:
    holder, asker = benches(durations=Durations(0.001, 0.0001))
    ask(asker, holder)
    (order,) = asker.peers.pending
    asker.peers.end(order, Answering.SPOILT, seconds=1.0)
    asker.run_until_idle()
    asker.clock.advance(60.0)
    holder.answer(range(300, 341))
    asker.assert_exact(ask(asker, holder, prompt=range(300, 341)))
    assert asker.engine.exchange.counts.declined_fetches == 1


def test_who_shares_little_with_a_fetch_does_not_wait_for_all_of_it() -> None:
    holder, asker = benches()
    ask(asker, holder)
    short = asker.submit([*PROMPT[:4], 7, 8, 9])
    asker.run_until_idle()
    assert asker.answers[short].has_ended
    less = asker.submit([*PROMPT[:16], 7, 8, 9])
    asker.run_until_idle()
    asker.assert_exact(short, less)
    most = asker.submit([*PROMPT[:36], 7, 8, 9])
    asker.run_until_idle()
    assert not asker.answers[most].has_ended, "a first fetch ends before so much was computed"
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(most)


def test_nobody_waits_for_what_a_drain_brings_for_longer_than_computing_takes() -> None:
    holder, asker = benches()
    state = asker.engine.exchange.adopt(holder.hint(10), ACME, pack(PROMPT[:40]))
    assert state is not None
    key = asker.submit([*PROMPT[:4], 7, 8, 9])
    asker.run_until_idle()
    assert asker.answers[key].has_ended
    asker.peers.end_all()
    asker.run_until_idle()
    assert state.num_whole == 9, "the first block was computed meanwhile"


def test_who_waits_for_a_fetch_that_should_be_quick_has_a_time_of_its_own() -> None:
    holder, asker = benches(durations=Durations(0.001, 0.001))
    asker.answer(range(900, 990))
    ask(asker, holder)
    asker.peers.end_all()
    asker.run_until_idle()
    holder.answer(range(300, 380))
    state = asker.engine.exchange.adopt(holder.hint(19), ACME, pack(range(300, 376)))
    assert state is not None
    key = asker.submit(range(300, 370))
    asker.run_until_idle()
    assert not asker.answers[key].has_ended, "fetching was measured as quick"
    asker.clock.advance(0.2)
    asker.engine.tick()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.peers.pending, "the drain goes on"
    asker.engine.check_invariants()
    asker.peers.end_all()
    asker.run_until_idle()
    assert state.num_whole == 2
    assert asker.engine.num_held_blocks == 0


def test_requests_without_leave_to_store_fetch_nothing() -> None:
    holder, asker = benches()
    for mode in (CacheMode.READ_ONLY, CacheMode.BYPASS, CacheMode.PURGED):
        key = ask(asker, holder, mode=mode)
        asker.assert_exact(key)
    assert not asker.engine.exchange.counts.fetches


def test_strict_tenants_fetch_nothing() -> None:
    holder, asker = benches()
    asker.engine.set_quotas(make_table(acme=TierShare(0.5, 0.5)))
    asker.assert_exact(ask(asker, holder))
    assert not asker.engine.exchange.counts.fetches


def test_where_blocks_have_no_slots_of_their_own_nothing_is_given_or_taken() -> None:
    """In groups of sliding layers that are short of slots."""
    holder, asker = benches(window=8, num_slots=(64, 40), config=EngineConfig(num_max_sequences=2, num_step_tokens=16))
    assert holder.engine.exchange.block_bytes == 0
    asker.assert_exact(ask(asker, holder))
    assert not asker.engine.exchange.counts.fetches
    whole_holder, whole_asker = benches(window=8)
    key = ask(whole_asker, whole_holder)
    whole_asker.peers.end_all()
    whole_asker.run_until_idle()
    whole_asker.assert_exact(key)
    assert whole_asker.engine.exchange.counts.fetched_blocks == 10


def test_what_computes_faster_is_not_fetched() -> None:
    slow_network = 1.0
    holder, asker = benches(durations=Durations(0.001, 0.0001))
    ask(asker, holder)
    (order,) = asker.peers.pending
    asker.peers.end(order, seconds=slow_network)
    asker.run_until_idle()
    asker.answer(range(200, 240))
    holder.answer(range(300, 341))
    asker.assert_exact(ask(asker, holder, prompt=range(300, 341)))
    counts = asker.engine.exchange.counts
    assert (counts.fetches, counts.declined_fetches) == (1, 1)


def test_one_tenant_leaves_others_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches, "MAX_TENANT_FETCHES", 2)
    holder, asker = benches()
    for number in range(3):
        holder.answer(range(200 + 50 * number, 241 + 50 * number))
    holder.answer(PROMPT, domain=GLOBEX)
    keys = [ask(asker, holder, prompt=range(200 + 50 * number, 241 + 50 * number)) for number in range(3)]
    assert len(asker.peers.pending) == 2
    assert asker.answers[keys[2]].has_ended, "the third waits though nothing comes for it"
    ask(asker, holder, domain=GLOBEX)
    assert len(asker.peers.pending) == 3


def test_bytes_on_their_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    holder, asker = benches()
    monkeypatch.setattr(fetches, "MAX_BYTES", 12 * asker.engine.exchange.block_bytes)
    key = ask(asker, holder)
    (order,) = asker.peers.pending.values()
    assert order.num_blocks == 6, "one tenant has half of it"
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached is not None
    assert asker.answers[key].cached.peer >= 24


def test_a_step_that_fails_uses_nothing_that_it_was_to_bring() -> None:
    holder, asker = benches()
    key = ask(asker, holder)
    asker.peers.end_all()
    other = asker.submit(range(500, 520))
    asker.runner.error = RuntimeError("injected")
    asker.run_until_idle()
    assert isinstance(asker.answers[other].error, StemcacheError)
    asker.assert_exact(key)


def test_a_tenant_at_its_maximum_gets_what_has_room() -> None:
    holder, asker = benches()
    asker.engine.set_quotas(make_table(acme=TierShare(0.0, 14 / 64)))
    key = ask(asker, holder)
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.engine.usage()[0].used_blocks <= 14


def test_the_holder_says_whether_more_is_coming() -> None:
    holder = PeeredBench("holder")
    key = holder.submit(PROMPT)
    exchange, tokens = holder.engine.exchange, holder.requests[key].prompt
    assert exchange.domain(ACME.tag) == ACME
    assert exchange.domain(GLOBEX.tag) is None
    exported = exchange.export(ACME, tokens, 0, 100)
    assert (len(exported.blocks), exported.is_more_coming) == (0, True)
    assert not exchange.export(GLOBEX, tokens, 0, 100).is_more_coming
    holder.run_until_idle()
    exported = exchange.export(ACME, tokens, 0, 100)
    assert (len(exported.blocks), exported.is_more_coming) == (10, False)
    assert len(exchange.export(ACME, tokens, 8, 100).blocks) == 2


def test_who_waits_for_a_fetch_is_not_said_to_compute() -> None:
    holder, asker = benches()
    key = ask(asker, holder)
    assert not asker.engine.exchange.export(ACME, asker.requests[key].prompt, 0, 100).is_more_coming
