"""What one tenant's fetches from a worker come to decides nothing of another one's, at the engine; its own do."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from cache_store.domain import Domain
from tests.support.domains import make_domain
from tests.support.engines import ACME, GLOBEX
from tests.support.manual_peers import Answering, PeeredBench, link
from worker.digest_runner import Durations
from worker.peers import Fetched, FetchOrder

PROMPT, NEXT = range(100, 141), range(300, 341)
"""10 full blocks of 4 each, and a token."""


def ask(asker: PeeredBench, holder: PeeredBench, prompt: Iterable[int], domain: Domain) -> list[FetchOrder]:
    """What is ordered for a request with a hint."""
    asker.submit(prompt, domain=domain, peer=holder.hint(10))
    asker.run_until_idle()
    return list(asker.peers.pending.values())


def benches() -> tuple[PeeredBench, PeeredBench]:
    """One that has prompts of two tenants, and one that knows how fast it computes them, and nothing else."""
    holder, asker = (PeeredBench(name, durations=Durations(0.0, 0.01)) for name in ("holder", "asker"))
    link(holder, asker)
    for domain in (ACME, GLOBEX):
        for prompt in (PROMPT, NEXT):
            holder.answer(prompt, domain=domain)
    asker.answer(range(900, 960), domain=make_domain("initech"))
    return holder, asker


def slow(asker: PeeredBench, order: FetchOrder) -> None:
    asker.peers.end(order.id, seconds=1.0)


def late(asker: PeeredBench, order: FetchOrder) -> None:
    del asker.peers.pending[order.id]
    asker.peers.tell(Fetched(order.id, (), 0.0, 0.0, is_failed=False, late_s=order.timeout_s))


def failed(asker: PeeredBench, order: FetchOrder) -> None:
    asker.peers.end(order.id, Answering.FAILED)


def silent(asker: PeeredBench, order: FetchOrder) -> None:
    asker.clock.advance(order.timeout_s + 2.1)
    asker.engine.tick()


ENDS = pytest.mark.parametrize("end", [slow, late, failed, silent])
End = Callable[[PeeredBench, FetchOrder], None]


@ENDS
def test_another_tenant_fetches_as_if_it_had_not_been(end: End) -> None:
    holder, asker = benches()
    (order,) = ask(asker, holder, PROMPT, ACME)
    end(asker, order)
    asker.run_until_idle()
    (others,) = ask(asker, holder, PROMPT, GLOBEX)
    assert (others.num_blocks, others.timeout_s) == (order.num_blocks, pytest.approx(order.timeout_s))
    asker.peers.end_all()
    asker.run_until_idle()
    assert asker.engine.exchange.counts.fetched_blocks >= 10


@ENDS
def test_its_own_next_one_is_computed(end: End) -> None:
    holder, asker = benches()
    (order,) = ask(asker, holder, PROMPT, ACME)
    end(asker, order)
    asker.run_until_idle()
    assert not ask(asker, holder, NEXT, ACME)
    assert asker.engine.exchange.counts.declined_fetches == 1


def test_who_was_quick_for_one_tenant_has_no_more_time_for_another_one() -> None:
    holder, asker = benches()
    (first,) = ask(asker, holder, PROMPT, ACME)
    asker.peers.end_all()
    asker.run_until_idle()
    (second,) = ask(asker, holder, NEXT, ACME)
    asker.peers.end_all()
    asker.run_until_idle()
    (others,) = ask(asker, holder, PROMPT, GLOBEX)
    assert first.timeout_s == others.timeout_s == pytest.approx(0.2), "half of the time to compute"
    assert second.timeout_s == pytest.approx(0.4)
