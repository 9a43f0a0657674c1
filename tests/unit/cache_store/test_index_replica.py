"""The copy of the index: loads beside changes, and its bounds. The machine is in tests/property."""

from __future__ import annotations

from cache_store.domain import DomainTag
from cache_store.events import BlockChange
from cache_store.index import Incarnation
from cache_store.index_replica import IndexReplica
from cache_store.index_stream import StreamedChange

TAG, OTHER = DomainTag(b"a" * 16), DomainTag(b"b" * 16)
WORKER = Incarnation("1" * 32)
BLOCKS = [bytes([number]) * 16 for number in range(6)]
CHAIN = b"".join(BLOCKS)


def loaded(replica: IndexReplica, tag: DomainTag, num_blocks: int) -> None:
    begun = replica.begin_load(tag, WORKER)
    assert begun is not None
    replica.finish_load(begun, BLOCKS[:num_blocks])


def test_what_comes_while_a_load_is_under_way_counts() -> None:
    replica = IndexReplica()
    begun = replica.begin_load(TAG, WORKER)
    assert begun is not None
    replica.apply(WORKER, [StreamedChange(TAG, BlockChange.REMOVED, BLOCKS[2])])
    assert not replica.knows(TAG, WORKER)
    replica.finish_load(begun, BLOCKS[:3])  # read before the removal
    assert replica.counts(TAG, CHAIN, [WORKER]) == {WORKER: 2}


def test_a_load_that_was_overtaken_by_another_one_changes_nothing() -> None:
    replica = IndexReplica()
    first = replica.begin_load(TAG, WORKER)
    assert first is not None
    read = BLOCKS[:3]
    replica.apply(WORKER, [StreamedChange(TAG, BlockChange.REMOVED, BLOCKS[2])])
    replica.forget(WORKER)
    second = replica.begin_load(TAG, WORKER)
    assert second is not None
    replica.finish_load(first, read)
    replica.abandon_load(first)
    replica.check_invariants()
    assert not replica.knows(TAG, WORKER)
    replica.finish_load(second, BLOCKS[:2])
    assert replica.counts(TAG, CHAIN, [WORKER]) == {WORKER: 2}


def test_the_domain_that_was_not_asked_for_longest_goes_first() -> None:
    replica = IndexReplica(max_digests=8)
    loaded(replica, TAG, 2)
    loaded(replica, OTHER, 5)
    assert replica.counts(TAG, CHAIN, [WORKER]) == {WORKER: 2}
    replica.apply(WORKER, [StreamedChange(TAG, BlockChange.STORED, b"".join(BLOCKS[2:4]))])
    assert (replica.knows(TAG, WORKER), replica.knows(OTHER, WORKER)) == (True, False)
    replica.check_invariants()


def test_a_domain_that_is_too_large_goes_alone_and_is_not_loaded_again() -> None:
    replica = IndexReplica(max_digests=5)
    loaded(replica, OTHER, 2)
    loaded(replica, TAG, 3)
    replica.apply(WORKER, [StreamedChange(TAG, BlockChange.STORED, BLOCKS[3])])
    assert (replica.knows(TAG, WORKER), replica.knows(OTHER, WORKER)) == (False, True)
    assert replica.begin_load(TAG, WORKER) is None
    replica.check_invariants()
    replica.apply(WORKER, [StreamedChange(TAG, BlockChange.CLEARED, b"")])
    loaded(replica, TAG, 0)
    assert replica.knows(TAG, WORKER)


def test_a_load_of_too_much_takes_nothing_from_others() -> None:
    replica = IndexReplica(max_digests=5)
    loaded(replica, OTHER, 2)
    begun = replica.begin_load(TAG, WORKER)
    assert begun is not None
    replica.refuse_load(begun)
    assert (replica.num_domains, replica.num_digests) == (1, 2)
    assert replica.begin_load(TAG, WORKER) is None


def test_domains_are_bounded_also_where_nothing_is_held() -> None:
    replica = IndexReplica(max_domains=2)
    for number in range(5):
        loaded(replica, DomainTag(bytes([number]) * 16), 0)
    assert replica.num_domains == 2
