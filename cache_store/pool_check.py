"""What always holds in a block pool, said in code: raises AssertionError where its books do not agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cache_store.domain import TenantId
from cache_store.ledger import Ledger
from cache_store.prefix_tree import Block, PrefixTree


def check_pool(
    tree: PrefixTree,
    ledger: Ledger,
    unused: Sequence[Block],
    num_blocks: int,
) -> None:
    """Walks everything."""
    tree.check_invariants()
    cached: Counter[TenantId] = Counter()
    held: Counter[TenantId] = Counter()
    leaves: set[int] = set()
    taken: set[int] = set()
    for block in tree.blocks():
        _check_block(block, taken)
        (held if block.ref_count else cached)[block.tenant] += 1
        if block.ref_count == 0 and not block.children:
            leaves.add(block.uid)
    accounts = ledger.everybody
    assert set(cached) | set(held) <= {account.tenant for account in accounts}, "a block belongs to nobody"
    offered = [block for account in accounts for block in account.queue.leaves()]
    assert {block.uid for block in offered} == leaves, "a leaf that nobody holds is in no queue, or another block is"
    for account in accounts:
        assert all(block.tenant == account.tenant for block in account.queue.leaves()), "a leaf in a foreign queue"
        assert account.num_cached == cached[account.tenant], f"{account.tenant}: cached blocks are miscounted"
        assert account.num_held >= held[account.tenant], f"{account.tenant}: held blocks are miscounted"
        assert account.num_cached == 0 or account.num_used <= account.maximum, f"{account.tenant} keeps too much"
    free = {block.number for block in unused}
    for block in unused:
        assert block.ref_count == 0, f"{block} is unused and held"
        assert block.parent is None, f"{block} is unused and in the tree"
        assert block.use is None, f"{block} is unused and has a use"
        assert not block.children
        assert block.lower is None
    assert len(free) == len(unused), "an unused block is listed twice"
    assert taken.isdisjoint(free), "a block is used and unused"
    _check_kept(ledger, len(unused))
    num_used = sum(account.num_used for account in accounts)
    assert num_used + len(unused) == num_blocks, "slots were lost or made up"


def _check_kept(ledger: Ledger, num_unused: int) -> None:
    present = set(ledger.present)
    for account in ledger.everybody:
        assert (account in present) == (account.num_used > 0 or account.strict), f"{account.tenant} is overlooked"
        assert account.num_kept <= account.num_to_keep, f"{account.tenant}: too many slots are kept"
    assert ledger.num_free(num_unused) >= 0, "slots are kept that are used"
    if ledger.num_to_keep():
        assert ledger.num_free(num_unused) == 0, "free slots are kept from a strict tenant"
        assert not any(each.reclaimable for each in present), "a strict tenant's guarantee is lent"


def _check_block(block: Block, taken: set[int]) -> None:
    assert block.number not in taken, f"two blocks have the number {block.number}"
    taken.add(block.number)
    assert block.ref_count >= 0
    parent = block.parent
    if isinstance(parent, Block):
        assert parent.ref_count > 0 or block.ref_count == 0, f"{block} is held, its parent is not"
        assert parent.tenant == block.tenant
        assert block.shared <= parent.shared, f"{block} is shared, its parent is not"
        assert len(parent.children) < 2 or parent.shared
    if block.ref_count == 0:
        assert block.use is not None, f"{block} was let go without a use"
