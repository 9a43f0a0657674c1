"""What always holds in the tiers below the device, said in code: raises AssertionError where the books do not agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from cache_store.domain import TenantId
from cache_store.lower_block import LowerBlock, LowerDomain, Stay, StayState
from cache_store.lower_tier import LowerTier
from cache_store.lower_tree import descendants, tops
from cache_store.prefix_tree import Block


def check_domain(domain: LowerDomain) -> None:
    """Every node hangs where it should, and the union of all tiers is prefix-closed."""
    assert domain.nodes, "a domain of which nothing is here is forgotten"
    hanging = [node for top in tops(domain) for node in descendants(top)]
    on_device = [node for node in domain.nodes if node.device is not None]
    assert len(hanging) + len(on_device) == len(domain.nodes)
    assert {*hanging, *on_device} == set(domain.nodes), "a node hangs nowhere"
    for node in domain.nodes:
        assert node.domain is domain
        for tokens, child in node.children.items():
            assert child.tokens == tokens
            assert child.parent is node
            assert child.parent_digest == node.digest
        assert not node.ref_count or node.pinned or not any(node.stays)
    for node in hanging:
        assert node.device is None, "a node hangs below another, and the device has its block"
        assert any(node.stays), "a block that no tier has is found"
        assert node.use is not None
    for node in on_device:
        _check_on_device(node)


def _check_on_device(node: LowerBlock) -> None:
    block = node.device
    assert isinstance(block, Block)
    assert block.lower is node
    assert block.parent is not None, "the device has not the block"
    assert (block.root, block.tokens, block.digest) == (node.domain.digest, node.tokens, node.digest)
    assert node.parent is None
    assert node.children or any(node.stays), "a node without anything is kept"
    assert not set(node.children) & set(block.children), "the device and a lower tier have a block apart"


def check_tier(tier: LowerTier, domains: Collection[LowerDomain]) -> None:
    """Slots, accounts and orders agree with the stays."""
    stays = [stay for domain in domains for node in domain.nodes if (stay := node.stays[tier.level]) is not None]
    slots = [stay.slot for stay in stays]
    assert len(set(slots)) == len(slots), "a slot belongs to two blocks"
    assert not set(slots) & set(tier.unused), "a slot is used and unused"
    assert len(set(tier.unused)) == len(tier.unused), "an unused slot is listed twice"
    used: Counter[TenantId] = Counter()
    loose: Counter[TenantId] = Counter()
    for stay in stays:
        used[stay.node.tenant] += 1
        loose[stay.node.tenant] += stay.ref_count == 0
        _check_stay(stay)
    for account in tier.ledger.everybody:
        assert account.num_cached == loose[account.tenant], f"{account.tenant}: blocks are miscounted"
        assert account.num_used >= used[account.tenant], f"{account.tenant}: held blocks are miscounted"
        assert account.num_kept <= account.num_to_keep
        assert (account in tier.ledger.present) == (account.num_used > 0 or account.strict)
        _check_order(tier, account.tenant, [stay for stay in stays if stay.node.tenant == account.tenant])
    num_used = sum(account.num_used for account in tier.ledger.everybody)
    assert num_used + len(tier.unused) == tier.num_blocks, "slots were lost or made up"
    assert tier.ledger.num_free(len(tier.unused)) >= 0, "slots are kept that are used"


def _check_stay(stay: Stay) -> None:
    node = stay.node
    above = [each for each in node.stays[: stay.level] if each is not None]
    is_sole = node.device is None and not above
    assert not stay.is_gone
    assert stay.parent is (node if is_sole else None), "a copy has a place in the order of eviction, or none is sole"
    assert stay.children == sum(child.stays[stay.level] is not None for child in node.children.values())
    assert stay.ref_count >= (stay.state is StayState.MOVING) + (stay in node.pinned)


def _check_order(tier: LowerTier, tenant: TenantId, stays: list[Stay]) -> None:
    order = tier.order_of(tenant)
    leaves = {stay for stay in stays if stay.parent is not None and not stay.ref_count and not stay.children}
    assert set(order.queue.leaves()) == leaves, "a leaf that may go is in no order, or another block is"
    copies = {stay for stay in stays if stay.parent is None and not stay.ref_count}
    assert set(order.copies) == copies, "a copy that may go is not known"
