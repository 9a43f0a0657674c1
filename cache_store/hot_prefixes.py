"""What a worker has cached, as whole prefixes, those used last first: what it gives away before it leaves. Pure.

Prefixes that begin alike share what is alike, so that to name them costs as much as the blocks that there are, however
many prefixes go through one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import nlargest

from cache_store.domain import Domain, TenantId
from cache_store.lower_block import LowerBlock
from cache_store.prefix_tree import Block
from cache_store.tokens import PackedTokens

CachedBlock = Block | LowerBlock
_End = tuple[CachedBlock, Domain]

IN_USE = 2**62
"""Later than any use."""


class Line:
    """Tokens of a block and, by `parent`, of all before it. Never changes; one object for all that begin so."""

    __slots__ = ("num_blocks", "parent", "tokens")

    def __init__(self, parent: Line | None, tokens: bytes) -> None:
        self.parent = parent
        self.tokens = tokens
        self.num_blocks: int = 1 if parent is None else parent.num_blocks + 1

    def packed(self) -> PackedTokens:
        """From the first block on."""
        parts: list[bytes] = []
        line: Line | None = self
        while line is not None:
            parts.append(line.tokens)
            line = line.parent
        parts.reverse()
        return PackedTokens(b"".join(parts))


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """A line of blocks from its domain's root on."""

    domain: Domain
    line: Line
    digest: bytes
    """Of its last block. Two looks may take different prefixes for one by it, no more."""
    order: int
    """Tells that block's last use from others."""
    used_s: float = math.inf
    """When that was, by the pool's clock; infinite: it is in use."""

    @property
    def num_blocks(self) -> int:
        return self.line.num_blocks


def hottest(
    leaves: Iterable[tuple[Domain, CachedBlock]], lasts: Callable[[CachedBlock], bool], most: int, most_blocks: int
) -> list[HotPrefix]:
    """Lines that were used last, tenants in turn: at most so many, of `most_blocks` blocks together at most.

    Each ends with a block that `lasts`: what has a time to live is left out, unless something that has none follows it.
    """
    lines: dict[CachedBlock, Line] = {}
    found: list[HotPrefix] = []
    for end, domain in _in_turn(_lasting_ends(leaves, lasts), most):
        line = _line(end, lines, most_blocks)
        if line is None:
            break
        found.append(HotPrefix(domain, line, end.digest, order_of(end), used_s(end)))
    return found


def order_of(block: CachedBlock) -> int:
    """When it was used last; what was never let go of is in use."""
    return IN_USE if block.use is None else block.use.order


def used_s(block: CachedBlock) -> float:
    """When it was used last, by the pool's clock; infinite where it is in use."""
    return math.inf if block.use is None else block.use.time_s


def _in_turn(ends: Mapping[CachedBlock, Domain], most: int) -> list[_End]:
    """Each tenant's last one, then each one's last but one: who has used many lately takes nobody else's turn."""
    by_tenant: dict[TenantId, list[_End]] = {}
    for end in ends.items():
        by_tenant.setdefault(end[1].tenant, []).append(end)
    ranked = [(rank, end) for own in by_tenant.values() for rank, end in enumerate(nlargest(most, own, key=_last_use))]
    ranked.sort(key=lambda each: (-each[0], _last_use(each[1])), reverse=True)
    return [end for _, end in ranked[:most]]


def _last_use(end: _End) -> tuple[float, int]:
    return used_s(end[0]), order_of(end[0])


def _lasting_ends(
    leaves: Iterable[tuple[Domain, CachedBlock]], lasts: Callable[[CachedBlock], bool]
) -> dict[CachedBlock, Domain]:
    """The last block that lasts of each line, with its domain."""
    ends: dict[CachedBlock, Domain] = {}
    passed: set[CachedBlock] = set()
    for domain, leaf in leaves:
        block: CachedBlock | None = leaf
        while block is not None and block not in passed and not lasts(block):
            passed.add(block)
            block = _before(block)
        if block is not None and block not in passed:
            ends[block] = domain
    return ends


def _line(end: CachedBlock, lines: dict[CachedBlock, Line], most: int) -> Line | None:
    """The line up to a block, made of those that are there; None where there would be more than `most`."""
    fresh: list[CachedBlock] = []
    block: CachedBlock | None = end
    while block is not None and block not in lines:
        fresh.append(block)
        block = _before(block)
    if len(lines) + len(fresh) > most:
        return None
    line = None if block is None else lines[block]
    for each in reversed(fresh):
        line = lines[each] = Line(line, each.tokens)
    return line


def _before(block: CachedBlock) -> CachedBlock | None:
    parent = block.parent if isinstance(block, Block) or block.device is None else block.device.parent
    return parent if isinstance(parent, Block | LowerBlock) else None
