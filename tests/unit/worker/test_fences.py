"""What a worker knows of fences: forward only, whichever way it hears of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from cache_store.domain import Domain, TenantId
from cache_store.fence import Fence, FenceNotice, FenceTable
from cache_store.index import Incarnation
from cache_store.request_token import RequestClaims
from tests.support.fences import fenced_domain, make_fence, make_table
from worker.fences import FenceBook, purged

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
FIRST, SECOND, THIRD = (make_fence("acme", number) for number in range(3))
PURGED_P = make_fence("acme", 1, {"p": 1})
OTHER = make_fence("globex")


def claims(fence: Fence, partition: str = "", generation: int = 1) -> RequestClaims:
    """Of a request whose router knew that fence."""
    return RequestClaims(fenced_domain(fence, partition), "r", Incarnation("1" * 32), 0.0, fence.order, generation)


def notice(fence: Fence, generation: int) -> FenceNotice:
    return FenceNotice(fence.tenant, fence, generation)


def test_nothing_is_purged_and_everybody_is_served_before_the_first_fence() -> None:
    book = FenceBook()
    assert book.admits(claims(FIRST))
    assert book.admits(claims(SECOND))
    assert book.generation == 0


def test_what_was_purged_is_not_reused_and_what_was_not_is() -> None:
    book = FenceBook()
    book.take(make_table(5, PURGED_P, OTHER))
    assert not book.admits(claims(FIRST)), "another epoch"
    assert not book.admits(claims(SECOND, "p")), "another mark"
    assert book.admits(claims(SECOND, "q")), "an older router, and a partition that was not purged"
    assert book.admits(claims(PURGED_P, "p"))
    assert book.admits(claims(OTHER))


def test_a_router_that_knows_more_is_right() -> None:
    book = FenceBook()
    book.take(make_table(5, SECOND))
    assert book.admits(claims(THIRD, generation=6))
    assert not book.admits(claims(FIRST, generation=6))


def test_published_fences_say_what_is_new_in_them() -> None:
    book = FenceBook()
    assert book.take(make_table(5, FIRST, OTHER)) == {ACME: FIRST, GLOBEX: OTHER}
    assert book.take(make_table(6, FIRST, OTHER)) == {}
    assert book.take(make_table(7, SECOND, OTHER)) == {ACME: SECOND}
    assert book.take(make_table(8, SECOND)) == {GLOBEX: None}
    assert not book.admits(claims(OTHER, generation=7))
    assert book.take(make_table(9, SECOND)) == {}


def test_an_older_fence_never_takes_the_place_of_a_newer_one() -> None:
    book = FenceBook()
    book.take(make_table(5, SECOND))
    assert book.take(make_table(6, FIRST)) == {}
    assert not book.admits(claims(FIRST, generation=6))
    assert book.take_notice(notice(FIRST, 9)) == {ACME: SECOND}
    assert not book.admits(claims(FIRST, generation=9))
    assert book.take_notice(notice(THIRD, 7)) == {ACME: THIRD}
    assert book.take_notice(notice(SECOND, 8)) == {ACME: THIRD}
    assert not book.admits(claims(SECOND, generation=8))


def test_a_notice_is_ahead_of_the_published_fences_until_they_come_up_to_it() -> None:
    book = FenceBook()
    book.take(make_table(5, FIRST))
    assert book.take_notice(notice(SECOND, 7)) == {ACME: SECOND}
    assert book.take(make_table(6, FIRST, OTHER)) == {GLOBEX: OTHER}
    assert not book.admits(claims(FIRST, generation=6))
    assert book.take(make_table(7, SECOND, OTHER)) == {}, "it was heard of before"
    assert book.take(make_table(8, THIRD, OTHER)) == {ACME: THIRD}


def test_a_deleted_tenant_stays_deleted() -> None:
    book = FenceBook()
    book.take(make_table(5, FIRST, OTHER))
    assert book.take_notice(FenceNotice(ACME, None, 7)) == {ACME: None}
    assert not book.admits(claims(FIRST, generation=7))
    assert book.take_notice(notice(SECOND, 6)) == {ACME: None}
    assert book.take(make_table(6, FIRST, OTHER)) == {}
    assert not book.admits(claims(FIRST, generation=6))
    assert book.take(make_table(7, OTHER)) == {ACME: None}
    assert book.take_notice(notice(FIRST, 5)) == {ACME: None}
    assert not book.admits(claims(SECOND, generation=7))
    assert book.admits(claims(OTHER))


def test_a_tenant_that_was_made_since_is_served_and_one_that_turns_out_to_be_deleted_is_dropped() -> None:
    book = FenceBook()
    book.take(make_table(5, OTHER))
    assert book.admits(claims(FIRST, generation=6))
    assert book.take(make_table(6, FIRST, OTHER)) == {ACME: FIRST}
    young = make_fence("initech")
    assert book.admits(claims(young, generation=8))
    assert book.take(make_table(7, FIRST, OTHER)) == {}, "still younger"
    assert book.take(make_table(8, FIRST, OTHER)) == {young.tenant: None}
    assert not book.admits(claims(young, generation=8))


def test_what_was_served_before_the_first_fences_is_dropped_where_they_do_not_list_it() -> None:
    book = FenceBook()
    book.admits(claims(FIRST, generation=3))
    assert book.take(make_table(4, OTHER)) == {ACME: None, GLOBEX: OTHER}


def test_purged_are_the_domains_of_other_epochs_and_of_deleted_tenants() -> None:
    old, kept = fenced_domain(SECOND, "p"), fenced_domain(SECOND, "q")
    new, others = fenced_domain(PURGED_P, "p"), fenced_domain(OTHER)
    domains = (old, kept, new, others)
    assert _of(purged(domains, {ACME: PURGED_P})) == {old}
    assert _of(purged(domains, {ACME: None})) == {old, kept, new}
    assert _of(purged(domains, {ACME: THIRD, GLOBEX: OTHER})) == {old, kept, new}
    assert _of(purged(domains, {})) == set()


def _of(found: Mapping[bytes, Domain]) -> set[Domain]:
    assert all(root == domain.root for root, domain in found.items())
    return set(found.values())


HISTORY = [
    make_fence("acme", 0),
    make_fence("acme", 0, {"p": 1}),
    make_fence("acme", 1),
    make_fence("acme", 1, {"": 1}),
]
"""What the control data said of a tenant, from generation to generation; then it was deleted."""


@given(
    heard=st.lists(st.tuples(st.sampled_from(["table", "notice"]), st.integers(0, len(HISTORY))), max_size=12),
    asked=st.integers(0, len(HISTORY) - 1),
    partition=st.sampled_from(["", "p"]),
)
def test_in_whatever_order_it_hears_the_newest_counts(heard: list[tuple[str, int]], asked: int, partition: str) -> None:
    book = FenceBook()
    newest = newest_table = -1
    for kind, generation in heard:
        fence = HISTORY[generation] if generation < len(HISTORY) else None
        if kind == "notice":
            told = book.take_notice(FenceNotice(ACME, fence, generation + 1))
            newest = max(newest, generation)
            known = HISTORY[newest] if newest < len(HISTORY) else None
            assert told == {ACME: known}
        elif generation > newest_table:  # published documents come in their order
            book.take(FenceTable(generation + 1, {} if fence is None else {ACME: fence}))
            newest, newest_table = max(newest, generation), generation
        request = claims(HISTORY[asked], partition, asked + 1)
        if newest < 0:
            continue
        is_deleted = newest == len(HISTORY)
        is_current = not is_deleted and HISTORY[newest].is_current(request.domain)
        assert book.admits(request) == (not is_deleted and (asked > newest or is_current))


def test_orders_of_the_history_grow() -> None:
    orders = [fence.order for fence in HISTORY]
    assert all(first < second for first, second in itertools.pairwise(orders))


def test_of_two_purges_that_do_not_know_of_each_other_both_count() -> None:
    book = FenceBook()
    book.take_notice(FenceNotice(ACME, make_fence("acme", partitions={"p": 1}), 10))
    told = book.take_notice(FenceNotice(ACME, make_fence("acme", partitions={"q": 1}), 10))
    both = make_fence("acme", partitions={"p": 1, "q": 1})
    assert told == {ACME: both}
    for partition in ("p", "q"):
        assert not book.admits(claims(make_fence("acme"), partition, 9))
        assert book.admits(claims(both, partition, 11))


def test_who_names_no_control_data_vouches_for_nobody_once_there_are_fences() -> None:
    book = FenceBook()
    assert book.admits(claims(FIRST, generation=0)), "nothing was published yet"
    book.take(make_table(4, OTHER))
    assert not book.admits(claims(FIRST, generation=0))
