"""The queues of leaves, where blocks are offered more often than they go."""

from __future__ import annotations

from cache_store.eviction_queue import EvictionQueue
from cache_store.expiry import Expiries
from cache_store.policy import ClassId, Use
from cache_store.prefix_tree import Block, DomainRoot
from tests.support.domains import make_domain

NUM_OFFERS = 10_000


def _leaf(use: Use) -> Block:
    block = Block(0, (0,))
    block.parent = DomainRoot(make_domain())
    block.use = use
    return block


def test_what_is_offered_again_and_again_takes_no_more_room() -> None:
    queue, leaf = EvictionQueue(), _leaf(Use(1.0, ClassId(0)))
    for _ in range(NUM_OFFERS):
        queue.push(leaf)
    assert len(list(queue.leaves())) < NUM_OFFERS / 10


def test_nor_where_it_has_a_time_to_live() -> None:
    use = Use(1.0, ClassId(0), expires_s=1e9)
    expiries, leaf = Expiries(), _leaf(use)
    for _ in range(NUM_OFFERS):
        expiries.push(leaf, use)
    assert len(expiries) < NUM_OFFERS / 10
    assert expiries.pop(2e9) is leaf


def test_the_oldest_of_all_classes_whatever_it_is_worth() -> None:
    queue = EvictionQueue()
    leaves = [_leaf(Use(time_s, ClassId(class_id))) for time_s, class_id in ((3.0, 0), (1.0, 1), (2.0, 0), (4.0, 2))]
    for leaf in leaves:
        queue.push(leaf)
    leaves[3].ref_count = 1
    assert queue.pop_least(lambda class_id, _age_s: -class_id, 10.0) is leaves[1]
    assert [queue.pop_oldest() for _ in range(3)] == [leaves[2], leaves[0], None]
