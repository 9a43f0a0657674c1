"""Single-flight: who is about to compute what a waiting sequence could reuse.

Pure. A leader must run, prefill and be allowed to share; nobody waits for somebody who waits, so no circle can form.
"""

from __future__ import annotations

from collections.abc import Iterable

from cache_store.tokens import common_prefix
from worker.sequence import Flight, Sequence


def find_flight(waiting: Sequence, num_reusable: int, running: Iterable[Sequence], block_size: int) -> Flight | None:
    """The flight that brings the most blocks, at least one more than the `num_reusable` tokens that are there now."""
    if not waiting.owner.may_match:
        return None
    best: Flight | None = None
    num_there = num_reusable // block_size
    for leader in running:
        if not _may_lead(leader, waiting):
            continue
        num_blocks = common_prefix(leader.prefix, waiting.prefix) // block_size
        if num_blocks > max(num_there, leader.num_committed) and (best is None or num_blocks > best.num_blocks):
            assert leader.id is not None
            best = Flight(leader, leader.id, num_blocks)
    return best


def _may_lead(leader: Sequence, waiting: Sequence) -> bool:
    return leader.owner.may_commit and leader.is_prefilling and leader.owner.domain.root == waiting.owner.domain.root
