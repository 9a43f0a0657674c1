"""What a worker that leaves gives to whom: hot first, tenants in turn, what begins alike together, to nobody all."""

from __future__ import annotations

from cache_store.domain import TenantId
from cache_store.hot_prefixes import HotPrefix
from cache_store.quota import TierShare
from cache_store.tokens import pack
from tests.support.engines import ACME, GLOBEX, Bench
from tests.support.manual_peers import PeeredBench, link
from tests.support.quotas import make_table
from worker.give_away import shares

BLOCK_SIZE = 4


def prefix(*families: int, length: int = 8, domain: object = ACME) -> HotPrefix:
    """One that begins with the blocks of the first family, and goes on with the others'."""
    tokens = [1_000 * family + at for family in families for at in range(length * BLOCK_SIZE)]
    return HotPrefix(domain, pack(tokens), len(families) * length, 0)  # type: ignore[arg-type]


def nobody(_: TenantId) -> bool:
    return False


def test_what_begins_alike_goes_to_one_worker() -> None:
    prefixes = [prefix(1, 2), prefix(3, 4), prefix(1, 5), prefix(3, 6)]
    given = shares(prefixes, 2, BLOCK_SIZE, nobody)
    assert {frozenset(map(id, part)) for part in given} == {
        frozenset(map(id, (prefixes[0], prefixes[2]))),
        frozenset(map(id, (prefixes[1], prefixes[3]))),
    }


def test_a_common_beginning_does_not_fill_one_worker() -> None:
    prefixes = [prefix(0, number) for number in range(1, 31)]
    given = shares(prefixes, 3, BLOCK_SIZE, nobody)
    assert max(map(len, given)) <= 20
    assert sum(map(len, given)) == 30


def test_a_strict_tenants_go_to_all() -> None:
    prefixes = [prefix(1), prefix(2, domain=GLOBEX)]
    given = shares(prefixes, 3, BLOCK_SIZE, lambda tenant: tenant == GLOBEX.tenant)
    assert sum(prefixes[0] in part for part in given) == 1
    assert all(prefixes[1] in part for part in given)


def test_the_hottest_come_first_and_tenants_in_turn() -> None:
    bench = PeeredBench("w")
    bench.answer(range(100, 141))
    bench.answer(range(200, 241))
    bench.answer(range(300, 341), domain=GLOBEX)
    bench.answer(range(100, 141))
    found = bench.engine.exchange.hottest()
    firsts = [(each.domain.tenant, each.tokens[:4]) for each in found]
    assert firsts == [
        (ACME.tenant, pack([100])),
        (GLOBEX.tenant, pack([300])),
        (ACME.tenant, pack([200])),
    ] or firsts == [
        (GLOBEX.tenant, pack([300])),
        (ACME.tenant, pack([100])),
        (ACME.tenant, pack([200])),
    ]
    assert all(each.num_blocks * BLOCK_SIZE * 4 == len(each.tokens) for each in found)


def test_blocks_in_the_hosts_memory_belong_to_it() -> None:
    bench = PeeredBench("w", num_blocks=14, num_host_blocks=64)
    bench.answer(range(100, 141))
    bench.answer(range(200, 241))
    found = {each.tokens[:160] for each in bench.engine.exchange.hottest()}
    assert found >= {pack(range(100, 140)), pack(range(200, 240))}


def test_what_has_a_time_to_live_stays() -> None:
    bench = PeeredBench("w")
    bench.answer(range(100, 141), ttl_s=100.0)
    bench.answer(range(200, 241))
    (found,) = bench.engine.exchange.hottest()
    assert found.tokens[:4] == pack([200])
    assert not bench.engine.exchange.export(ACME, pack(range(100, 141)), 0, 10).blocks
    assert len(bench.engine.exchange.export(ACME, pack(range(200, 241)), 0, 10).blocks) == 10


def test_an_engine_that_cannot_give_names_nothing() -> None:
    bench = Bench()
    bench.answer(range(100, 141))
    assert bench.engine.exchange.hottest() == []


def test_who_takes_it_takes_no_others_blocks() -> None:
    """Within the tenant's guarantee, or what nobody uses."""
    holder, taker = PeeredBench("holder"), PeeredBench("taker", num_blocks=24)
    link(holder, taker)
    holder.answer(range(100, 141))
    taker.answer(range(300, 381), domain=GLOBEX)
    before = taker.engine.lookup(GLOBEX, pack(range(300, 381))).device
    state = taker.engine.exchange.adopt(holder.hint(10), ACME, pack(range(100, 140)))
    assert state is not None
    taker.peers.end_all()
    taker.run_until_idle()
    assert 0 < state.num_whole < 10, "more than nobody used"
    assert taker.engine.lookup(GLOBEX, pack(range(300, 381))).device == before
    assert taker.engine.exchange.adopt(holder.hint(10), ACME, pack(range(100, 140))) is None


def test_who_takes_it_makes_room_within_the_guarantee() -> None:
    holder, taker = PeeredBench("holder"), PeeredBench("taker", num_blocks=24)
    link(holder, taker)
    holder.answer(range(100, 141))
    taker.answer(range(300, 381), domain=GLOBEX)
    taker.engine.set_quotas(make_table(acme=TierShare(0.5, 1.0)))
    state = taker.engine.exchange.adopt(holder.hint(10), ACME, pack(range(100, 140)))
    assert state is not None
    taker.peers.end_all()
    taker.run_until_idle()
    assert state.num_whole == 10
    assert taker.engine.lookup(ACME, pack(range(100, 141))).device == 40
    assert taker.engine.num_held_blocks == 0
