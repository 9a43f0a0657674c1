"""Blocks of other workers at the engine: compared, used, cached like computed ones, a miss where they are not there."""

from __future__ import annotations

import pytest

from cache_store.domain import Domain, FormatDigest
from cache_store.errors import StemcacheError
from cache_store.usage import CachedTokens
from tests.support.domains import make_domain
from tests.support.engines import ACME, GLOBEX
from tests.support.manual_peers import PROMPT, Answering, PeeredBench, ask, link, linked_benches
from tests.support.manual_transfers import Fate, ManualMaker, always
from worker.requests import RequestKey


def test_what_a_peer_holds_is_reused_and_not_computed() -> None:
    holder, asker = linked_benches()
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
    holder, asker = linked_benches()
    ask(asker, holder)
    asker.peers.end_all()
    asker.run_until_idle()
    assert asker.answer(PROMPT).cached == CachedTokens(40)
    assert asker.engine.num_held_blocks == 0
    assert {digests for _, digests in asker.engine.snapshot().items()} == {
        digests for _, digests in holder.engine.snapshot().items()
    }


def test_another_tenant_gets_nothing_of_it() -> None:
    holder, asker = linked_benches()
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
    holder, asker = linked_benches()
    key = ask(asker, holder, domain=other)
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens()


def test_blocks_come_up_to_the_first_token_that_differs() -> None:
    holder, asker = linked_benches()
    key = ask(asker, holder, prompt=[*PROMPT[:18], 7, *PROMPT[19:]])
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens(0, 0, 0, 16)


def test_the_last_token_is_computed() -> None:
    holder, asker = linked_benches()
    key = ask(asker, holder, prompt=PROMPT[:40])
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens(0, 0, 0, 36)


def test_what_follows_its_own_blocks_is_fetched() -> None:
    holder, asker = linked_benches()
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
    holder, asker = linked_benches()
    key = ask(asker, holder)
    asker.peers.end_all(how)
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens(0, 0, 0, num_tokens)
    assert asker.engine.exchange.counts.refused_blocks == (how is Answering.SPOILT)


def test_a_holder_that_has_lost_it_costs_a_miss() -> None:
    holder, asker = linked_benches()
    key = ask(asker, holder)
    holder.engine.purge({ACME.tenant: None})
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens()


def test_nothing_is_held_while_blocks_are_on_their_way() -> None:
    holder, asker = linked_benches()
    asker.answer(PROMPT[:13])
    ask(asker, holder)
    assert asker.engine.num_held_blocks == 0
    assert holder.engine.num_held_blocks == 0
    asker.peers.end_all()
    assert holder.engine.num_held_blocks == 0


def test_the_holder_makes_no_use_of_blocks_that_it_gives() -> None:
    holder, asker = linked_benches(num_blocks=24)
    holder.answer(range(400, 441))
    ask(asker, holder)
    asker.peers.end_all()
    holder.answer(range(600, 641))
    assert holder.engine.lookup(ACME, holder.requests[RequestKey(1)].prompt).device > 0, "the older one has to go first"


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
    holder, asker = linked_benches(num_blocks=14)
    asker.answer(PROMPT[:13])
    key = ask(asker, holder)
    asker.answer(range(700, 748), domain=GLOBEX)
    asker.peers.end_all()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert asker.answers[key].cached == CachedTokens()


def test_a_step_that_fails_uses_nothing_that_it_was_to_bring() -> None:
    holder, asker = linked_benches()
    key = ask(asker, holder)
    asker.peers.end_all()
    other = asker.submit(range(500, 520))
    asker.runner.error = RuntimeError("injected")
    asker.run_until_idle()
    assert isinstance(asker.answers[other].error, StemcacheError)
    asker.assert_exact(key)
