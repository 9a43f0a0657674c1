"""Who waits for blocks of another worker, for how long, and what becomes of a fetch that nobody waits for."""

from __future__ import annotations

from cache_store.tokens import pack
from cache_store.usage import CachedTokens
from tests.support.engines import ACME, GLOBEX
from tests.support.manual_peers import PROMPT, Answering, PeeredBench, ask, link, linked_benches
from tests.support.manual_transfers import ManualMaker, always
from worker.digest_runner import Durations


def test_equal_prompts_wait_for_one_fetch() -> None:
    holder, asker = linked_benches()
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
    holder, asker = linked_benches()
    key = ask(asker, holder)
    other = asker.submit(range(500, 520), domain=GLOBEX)
    asker.run_until_idle()
    assert asker.answers[other].has_ended
    assert not asker.answers[key].has_ended


def test_a_fetch_that_nobody_waits_for_any_more_is_cancelled() -> None:
    holder, asker = linked_benches()
    first, second = (asker.submit(PROMPT, peer=holder.hint(10)) for _ in range(2))
    asker.run_until_idle()
    asker.cancel(first)
    assert asker.peers.pending, "another request waits for it"
    asker.cancel(second)
    assert not asker.peers.pending
    assert len(asker.peers.cancelled) == 1
    asker.engine.check_invariants()


def test_what_comes_after_a_cancel_is_ignored() -> None:
    holder, asker = linked_benches()
    key = ask(asker, holder)
    (order,) = asker.peers.pending.values()
    late = asker.peers.answer(order, Answering.WELL, 0.001)
    asker.cancel(key)
    asker.peers.tell(late)
    asker.run_until_idle()
    assert asker.answer(PROMPT).cached == CachedTokens()


def test_an_answer_that_never_comes_is_given_up() -> None:
    holder, asker = linked_benches()
    key = ask(asker, holder)
    asker.clock.advance(60.0)
    asker.engine.tick()
    asker.run_until_idle()
    asker.assert_exact(key)
    assert not asker.peers.pending
    assert asker.engine.exchange.counts.failed_fetches == 1


def test_who_shares_little_with_a_fetch_does_not_wait_for_all_of_it() -> None:
    holder, asker = linked_benches()
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
    holder, asker = linked_benches()
    state = asker.engine.exchange.adopt(holder.hint(10), ACME, pack(PROMPT[:40]))
    assert state is not None
    key = asker.submit([*PROMPT[:4], 7, 8, 9])
    asker.run_until_idle()
    assert asker.answers[key].has_ended
    asker.peers.end_all()
    asker.run_until_idle()
    assert state.num_whole == 9, "the first block was computed meanwhile"


def test_who_waits_for_a_fetch_that_should_be_quick_has_a_time_of_its_own() -> None:
    holder, asker = linked_benches(durations=Durations(0.001, 0.001))
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
    holder, asker = linked_benches()
    key = ask(asker, holder)
    assert not asker.engine.exchange.export(ACME, asker.requests[key].prompt, 0, 100).is_more_coming
