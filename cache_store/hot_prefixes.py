"""What a worker has cached, as whole prefixes, those used last first: what it gives away before it leaves. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nlargest

from cache_store.domain import Domain
from cache_store.lower_block import LowerBlock
from cache_store.prefix_tree import Block
from cache_store.tokens import PackedTokens


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """A line of blocks from its domain's root to a leaf."""

    domain: Domain
    tokens: PackedTokens = field(repr=False)
    num_blocks: int
    order: int
    """Of its leaf's last use, over all of the worker's: larger is later."""


def hottest(leaves: Iterable[tuple[Domain, Block | LowerBlock]], most: int) -> list[HotPrefix]:
    """The `most` lines that were used last, tenants in turn. Those with a time to live are left out."""
    lasting = [(domain, leaf) for domain, leaf in leaves if leaf.use is None or leaf.use.expires_s == math.inf]
    latest = nlargest(most, lasting, key=lambda each: order_of(each[1]))
    ranks: dict[str, int] = {}
    ranked: list[tuple[int, HotPrefix]] = []
    for domain, leaf in latest:
        rank = ranks[domain.tenant] = ranks.get(domain.tenant, -1) + 1
        parts = tokens_of(leaf)
        ranked.append((rank, HotPrefix(domain, PackedTokens(b"".join(parts)), len(parts), order_of(leaf))))
    ranked.sort(key=lambda pair: pair[0])
    return [prefix for _, prefix in ranked]


def order_of(leaf: Block | LowerBlock) -> int:
    """When it was used last; what was never let go of is in use."""
    return 2**62 if leaf.use is None else leaf.use.order


def tokens_of(leaf: Block | LowerBlock) -> list[bytes]:
    """Tokens of a block and all before it, one entry a block."""
    parts: list[bytes] = []
    node: object = leaf
    while isinstance(node, Block | LowerBlock):
        parts.append(node.tokens)
        node = node.parent if isinstance(node, Block) or node.device is None else node.device.parent
    parts.reverse()
    return parts
