"""What a worker that leaves gives to whom: hot first, tenants in turn, what begins alike together, to nobody all."""

from __future__ import annotations

from collections import Counter

from cache_store.domain import Domain, TenantId
from cache_store.hot_prefixes import HotPrefix, Line, hottest
from cache_store.policy import ClassId, Use
from cache_store.prefix_tree import Block, DomainRoot
from cache_store.quota import TierShare
from cache_store.tokens import pack
from tests.support.engines import ACME, GLOBEX, Bench, sampling
from tests.support.manual_peers import Answering, PeeredBench, link
from tests.support.quotas import make_table
from worker.give_away import shares

BLOCK_SIZE = 4


class Lines:
    """Prefixes whose blocks are named; those that begin alike share what is alike."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, ...], Line] = {}

    def prefix(self, *families: int, length: int = 8, domain: Domain = ACME) -> HotPrefix:
        """One that begins with the blocks of the first family, and goes on with the others'."""
        line: Line | None = None
        names = [1_000 * family + at for family in families for at in range(length)]
        for end in range(1, len(names) + 1):
            line = self._lines.setdefault(tuple(names[:end]), Line(line, pack(names[end - 1 : end])))
        assert line is not None
        return HotPrefix(domain, line, pack(names), 0)


def nobody(_: TenantId) -> bool:
    return False


def anything(_: HotPrefix) -> bool:
    return True


def test_what_begins_alike_goes_to_one_worker() -> None:
    prefix = Lines().prefix
    prefixes = [prefix(1, 2), prefix(3, 4), prefix(1, 5), prefix(3, 6)]
    given = shares(prefixes, (anything,) * 2, nobody)
    assert {frozenset(map(id, part)) for part in given} == {
        frozenset(map(id, (prefixes[0], prefixes[2]))),
        frozenset(map(id, (prefixes[1], prefixes[3]))),
    }


def test_a_common_beginning_does_not_fill_one_worker() -> None:
    prefix = Lines().prefix
    prefixes = [prefix(0, number) for number in range(1, 31)]
    given = shares(prefixes, (anything,) * 3, nobody)
    assert max(map(len, given)) <= 20
    assert sum(map(len, given)) == 30


def test_a_strict_tenants_go_to_all() -> None:
    prefix = Lines().prefix
    prefixes = [prefix(1), prefix(2, domain=GLOBEX)]
    given = shares(prefixes, (anything,) * 3, lambda tenant: tenant == GLOBEX.tenant)
    assert sum(prefixes[0] in part for part in given) == 1
    assert all(prefixes[1] in part for part in given)


def test_what_a_worker_does_not_want_is_not_offered_to_it() -> None:
    prefix = Lines().prefix
    prefixes = [prefix(number) for number in range(5)]
    given = shares(prefixes, (lambda _: False, anything, lambda each: each is prefixes[0]), nobody)
    assert sum(map(len, given)) == 5
    assert not given[0]
    assert {id(each) for each in given[2]} <= {id(prefixes[0])}
    assert shares(prefixes, (lambda _: False,), nobody) == [[]]


def test_what_begins_alike_is_named_once() -> None:
    """However many prefixes go on from a long document."""
    common = chain_of(2_000, DomainRoot(ACME))
    leaves = [(ACME, block(common, number)) for number in range(500)]
    found = hottest(leaves, lambda _: True, 4_096, 10_000)
    assert len(found) == 500
    assert len({id(line) for prefix in found for line in lines_of(prefix)}) == 2_500
    assert {prefix.num_blocks for prefix in found} == {2_001}
    assert {len(prefix.line.packed()) for prefix in found} == {2_001 * 4}
    assert len(hottest(leaves, lambda _: True, 4_096, 2_100)) == 100, "blocks are bounded"
    assert len(hottest(leaves, lambda _: True, 7, 10_000)) == 7
    assert sorted(map(len, shares(found, (anything,), nobody))) == [500]


def test_of_more_than_are_named_each_tenant_has_its_part() -> None:
    """However many one tenant has used since the other one was there, and however long they are."""
    theirs = [(GLOBEX, block(DomainRoot(GLOBEX), number)) for number in range(3)]
    flood = [(ACME, block(DomainRoot(ACME), number)) for number in range(10, 60)]
    for order, (_, each) in enumerate((*theirs, *flood)):
        each.use = Use(float(order), ClassId(0))
        each.use.order = order
    found = hottest([*theirs, *flood], lambda _: True, 8, 10_000)
    assert [each.domain.tenant for each in found] == [ACME.tenant, GLOBEX.tenant] * 3 + [ACME.tenant] * 2
    assert [each.order for each in found] == [52, 2, 51, 1, 50, 0, 49, 48]
    found = hottest([*theirs, *flood], lambda _: True, 4_096, 6)
    assert Counter(each.domain.tenant for each in found) == {ACME.tenant: 3, GLOBEX.tenant: 3}, "blocks are bounded"


def block(parent: Block | DomainRoot, number: int) -> Block:
    made = Block(number, (number,))
    made.parent, made.tokens, made.digest = parent, pack([number]), number.to_bytes(16, "big")
    return made


def chain_of(num_blocks: int, root: DomainRoot) -> Block:
    end = block(root, 1_000_000)
    for number in range(1, num_blocks):
        end = block(end, 1_000_000 + number)
    return end


def lines_of(prefix: HotPrefix) -> list[Line]:
    lines, line = [], prefix.line
    while line is not None:
        lines.append(line)
        line = line.parent  # type: ignore[assignment]
    return lines


def test_the_hottest_come_first_and_tenants_in_turn() -> None:
    bench = PeeredBench("w")
    bench.answer(range(100, 141))
    bench.answer(range(200, 241))
    bench.answer(range(300, 341), domain=GLOBEX)
    bench.answer(range(100, 141))
    found = bench.engine.exchange.hottest()
    firsts = [(each.domain.tenant, each.line.packed()[:4]) for each in found]
    assert firsts == [
        (ACME.tenant, pack([100])),
        (GLOBEX.tenant, pack([300])),
        (ACME.tenant, pack([200])),
    ] or firsts == [
        (GLOBEX.tenant, pack([300])),
        (ACME.tenant, pack([100])),
        (ACME.tenant, pack([200])),
    ]
    assert all(each.num_blocks * BLOCK_SIZE * 4 == len(each.line.packed()) for each in found)


def test_blocks_in_the_hosts_memory_belong_to_it() -> None:
    bench = PeeredBench("w", num_blocks=14, num_host_blocks=64)
    bench.answer(range(100, 141))
    bench.answer(range(200, 241))
    found = {each.line.packed()[:160] for each in bench.engine.exchange.hottest()}
    assert found >= {pack(range(100, 140)), pack(range(200, 240))}


def test_what_has_a_time_to_live_stays() -> None:
    bench = PeeredBench("w")
    bench.answer(range(100, 141), ttl_s=100.0)
    bench.answer(range(200, 241))
    (found,) = bench.engine.exchange.hottest()
    assert found.line.packed()[:4] == pack([200])
    assert not bench.engine.exchange.export(ACME, pack(range(100, 141)), 0, 10).blocks
    assert len(bench.engine.exchange.export(ACME, pack(range(200, 241)), 0, 10).blocks) == 10


def test_what_is_to_have_a_time_to_live_stays_while_its_request_runs() -> None:
    holder, taker = PeeredBench("holder"), PeeredBench("taker")
    link(holder, taker)
    holder.submit(range(100, 141), sampling(max_tokens=8), ttl_s=60.0)
    for _ in range(4):
        holder.step()
    assert holder.engine.exchange.hottest() == []
    exported = holder.engine.exchange.export(ACME, pack(range(100, 141)), 0, 10)
    assert (exported.blocks, exported.is_more_coming) == ((), False)
    holder.run_until_idle()
    assert holder.engine.exchange.hottest() == []
    lasting = holder.submit(range(200, 241), sampling(max_tokens=8))
    for _ in range(4):
        holder.step()
    assert not holder.answers[lasting].has_ended
    (found,) = holder.engine.exchange.hottest()
    assert found.num_blocks >= 10, "what runs without one is given"


def test_nothing_of_it_is_said_to_be_coming() -> None:
    holder = PeeredBench("holder")
    holder.submit(range(100, 141), ttl_s=60.0)
    assert not holder.engine.exchange.export(ACME, pack(range(100, 141)), 0, 10).is_more_coming
    holder.submit(range(100, 141))
    assert holder.engine.exchange.export(ACME, pack(range(100, 141)), 0, 10).is_more_coming


def test_what_lasts_is_given_up_to_where_a_time_to_live_begins() -> None:
    """And what lies before something that lasts stays as long as that does."""
    bench = PeeredBench("w")
    bench.answer(range(100, 121), sampling(max_tokens=1))
    bench.answer(range(100, 141), ttl_s=100.0)
    assert bench.engine.exchange.hottest() == [], "the last use tells"
    bench.answer(range(100, 121), sampling(max_tokens=1))
    (found,) = bench.engine.exchange.hottest()
    assert found.line.packed() == pack(range(100, 120))
    assert len(bench.engine.exchange.export(ACME, pack(range(100, 140)), 0, 10).blocks) == 5
    bench.answer([*range(100, 121), *range(500, 520)])
    bench.answer(range(100, 121), sampling(max_tokens=1), ttl_s=100.0)
    (found,) = bench.engine.exchange.hottest()
    assert found.num_blocks == 12
    assert len(bench.engine.exchange.export(ACME, found.line.packed(), 0, 12).blocks) == 12


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


def test_a_tenants_quota_holds_for_what_it_is_given_and_for_no_other_tenant() -> None:
    holder, taker = PeeredBench("holder"), PeeredBench("taker")
    link(holder, taker)
    for domain in (ACME, GLOBEX):
        holder.answer(range(100, 141), domain=domain)
    taker.engine.set_quotas(make_table(acme=TierShare(0.0, 4 / 64)))
    tokens = pack(range(100, 140))
    states = [taker.engine.exchange.adopt(holder.hint(10), domain, tokens) for domain in (ACME, GLOBEX)]
    taker.peers.end_all()
    taker.run_until_idle()
    assert [state and state.num_whole for state in states] == [4, 10]
    assert taker.engine.exchange.adopt(holder.hint(10), ACME, tokens) is None, "it is at its maximum"
    assert {use.tenant: use.used_blocks for use in taker.engine.usage()} == {ACME.tenant: 4, GLOBEX.tenant: 10}


def test_a_worker_whose_cache_is_full_takes_what_was_used_later() -> None:
    """It keeps its own of the last while; what it is given is as old as it was."""
    holder, taker = PeeredBench("holder"), PeeredBench("taker", num_blocks=24)
    link(holder, taker)
    holder.answer(range(100, 141), sampling(max_tokens=1))
    for first in (300, 400):
        taker.answer(range(first, first + 48), sampling(max_tokens=1))
        taker.clock.advance(10.0)
    tokens = pack(range(100, 140))
    assert taker.engine.exchange.adopt(holder.hint(10), ACME, tokens, 60.0) is None
    state = taker.engine.exchange.adopt(holder.hint(10), ACME, tokens, 15.0)
    assert state is not None
    taker.peers.end_all()
    taker.run_until_idle()
    assert state.num_whole == 10
    assert taker.engine.lookup(ACME, pack(range(400, 449))).device == 48
    taker.answer(range(500, 541), sampling(max_tokens=1))
    assert taker.engine.lookup(ACME, pack(range(400, 449))).device == 48, "what it was given goes before"
    assert taker.engine.lookup(ACME, tokens).device < 40


def test_what_waits_to_be_taken_makes_no_room_before_it_has_come() -> None:
    holder, taker = PeeredBench("holder"), PeeredBench("taker", num_blocks=24)
    link(holder, taker)
    holder.answer(range(100, 141), sampling(max_tokens=1))
    for first in (300, 400):
        taker.answer(range(first, first + 49), sampling(max_tokens=1))
        taker.clock.advance(10.0)
    before = taker.engine.snapshot()
    state = taker.engine.exchange.adopt(holder.hint(10), ACME, pack(range(100, 140)), 0.0)
    taker.peers.end_all(Answering.FAILED)
    taker.run_until_idle()
    assert state is not None
    assert state.num_whole == 0
    assert taker.engine.snapshot() == before


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
