"""A purge while blocks are on their way from another worker leaves nothing of them."""

from __future__ import annotations

import pytest

from cache_store.tokens import pack
from cache_store.usage import CachedTokens
from tests.support.fences import fenced_domain, make_fence
from tests.support.manual_peers import PROMPT, Answering, PeeredBench, ask, link
from tests.support.manual_transfers import ManualMaker


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
