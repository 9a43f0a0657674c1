"""What is fetched from another worker at all: where it pays, within bounds, by who may, from who does not rest."""

from __future__ import annotations

import pytest

from cache_store.quota import TierShare
from tests.support.domains import make_domain
from tests.support.engines import ACME, GLOBEX
from tests.support.manual_peers import PROMPT, Answering, ask, linked_benches
from tests.support.quotas import make_table
from worker import fetches
from worker.digest_runner import Durations
from worker.engine_config import EngineConfig
from worker.requests import CacheMode


def test_a_peer_that_failed_is_not_asked_for_a_while() -> None:
    holder, asker = linked_benches()
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
    holder, asker = linked_benches()
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
    holder, asker = linked_benches(durations=Durations(0.001, 0.0001))
    ask(asker, holder)
    (order,) = asker.peers.pending
    asker.peers.end(order, Answering.SPOILT, seconds=1.0)
    asker.run_until_idle()
    asker.clock.advance(60.0)
    holder.answer(range(300, 341))
    asker.assert_exact(ask(asker, holder, prompt=range(300, 341)))
    assert asker.engine.exchange.counts.declined_fetches == 1


def test_requests_without_leave_to_store_fetch_nothing() -> None:
    holder, asker = linked_benches()
    for mode in (CacheMode.READ_ONLY, CacheMode.BYPASS, CacheMode.PURGED):
        key = ask(asker, holder, mode=mode)
        asker.assert_exact(key)
    assert not asker.engine.exchange.counts.fetches


def test_strict_tenants_fetch_nothing() -> None:
    holder, asker = linked_benches()
    asker.engine.set_quotas(make_table(acme=TierShare(0.5, 0.5)))
    asker.assert_exact(ask(asker, holder))
    assert not asker.engine.exchange.counts.fetches


def test_where_blocks_have_no_slots_of_their_own_nothing_is_given_or_taken() -> None:
    """In groups of sliding layers that are short of slots."""
    holder, asker = linked_benches(
        window=8, num_slots=(64, 40), config=EngineConfig(num_max_sequences=2, num_step_tokens=16)
    )
    assert holder.engine.exchange.block_bytes == 0
    asker.assert_exact(ask(asker, holder))
    assert not asker.engine.exchange.counts.fetches
    whole_holder, whole_asker = linked_benches(window=8)
    key = ask(whole_asker, whole_holder)
    whole_asker.peers.end_all()
    whole_asker.run_until_idle()
    whole_asker.assert_exact(key)
    assert whole_asker.engine.exchange.counts.fetched_blocks == 10


def test_what_computes_faster_is_not_fetched() -> None:
    slow_network = 1.0
    holder, asker = linked_benches(durations=Durations(0.001, 0.0001))
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
    holder, asker = linked_benches()
    for number in range(3):
        holder.answer(range(200 + 50 * number, 241 + 50 * number))
    holder.answer(PROMPT, domain=GLOBEX)
    keys = [ask(asker, holder, prompt=range(200 + 50 * number, 241 + 50 * number)) for number in range(3)]
    assert len(asker.peers.pending) == 2
    assert asker.answers[keys[2]].has_ended, "the third waits though nothing comes for it"
    ask(asker, holder, domain=GLOBEX)
    assert len(asker.peers.pending) == 3


def test_bytes_on_their_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    holder, asker = linked_benches()
    monkeypatch.setattr(fetches, "MAX_BYTES", 12 * asker.engine.exchange.block_bytes)
    key = ask(asker, holder)
    (order,) = asker.peers.pending.values()
    assert order.num_blocks == 6, "one tenant has half of it"
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached is not None
    assert asker.answers[key].cached.peer >= 24


def test_a_tenant_at_its_maximum_gets_what_has_room() -> None:
    holder, asker = linked_benches()
    asker.engine.set_quotas(make_table(acme=TierShare(0.0, 14 / 64)))
    key = ask(asker, holder)
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.engine.usage()[0].used_blocks <= 14
