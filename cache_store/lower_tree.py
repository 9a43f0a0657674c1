"""Where the blocks of lower tiers hang: by exact tokens, below the device's blocks or below each other.

Structure only: knows neither slots nor quotas. Owned by `cache_store/lower_tiers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cache_store.domain import Domain
from cache_store.lower_block import LowerBlock, LowerDomain
from cache_store.prefix_tree import Block, DomainRoot
from cache_store.tokens import TOKEN_BYTES, PackedTokens


class LowerTree:
    """Nodes of all domains."""

    def __init__(self, block_size: int, bare: Callable[[Block], None]) -> None:
        self._bare = bare
        self._width = block_size * TOKEN_BYTES
        self._last_number = 0
        self.domains: dict[bytes, LowerDomain] = {}
        """By root; those that have nodes."""

    def find(
        self, domain: Domain, chain: Sequence[Block], tokens: PackedTokens, max_tokens: int
    ) -> tuple[LowerBlock, ...]:
        """Full blocks that follow `chain` and can be loaded."""
        node = chain[-1].lower if chain else self.domains.get(domain.root)
        width = self._width
        limit = min(max_tokens * TOKEN_BYTES, len(tokens))
        found: list[LowerBlock] = []
        start = len(chain) * width
        while node is not None and start + width <= limit:
            node = node.children.get(tokens[start : start + width])
            if node is None or not node.is_ready:
                break
            found.append(node)
            start += width
        return tuple(found)

    def place_of(self, above: Block | DomainRoot, root: DomainRoot) -> LowerBlock | LowerDomain:
        """Where what hangs on `above`, which is on the device, hangs here."""
        domain = self.domains.get(root.digest)
        if domain is None:
            domain = self.domains[root.digest] = LowerDomain(root.domain, root.tag)
        if isinstance(above, DomainRoot):
            return domain
        if above.lower is None:
            assert above.parent is not None
            above.lower = self._make(domain, above, above.parent.digest)
            above.lower.device = above
        return above.lower

    def lay_down(self, block: Block, parent: LowerBlock | LowerDomain) -> LowerBlock:
        """The node of a block that the device has no more, below its parent's."""
        node = block.lower
        if node is None:
            node = self._make(parent if isinstance(parent, LowerDomain) else parent.domain, block, parent.digest)
        block.lower = node.device = None
        node.shared = block.shared
        node.parent = parent
        parent.children[node.tokens] = node
        return node

    def take_up(self, node: LowerBlock, block: Block) -> None:
        """The device has the block of a node again."""
        assert node.parent is not None
        del node.parent.children[node.tokens]
        node.parent = None
        node.device, block.lower = block, node
        block.shared = node.shared

    def remove(self, node: LowerBlock) -> list[LowerBlock]:
        """Takes out a node that the device has not, with all below it; returns them, children first."""
        assert node.parent is not None
        del node.parent.children[node.tokens]
        nodes = [*reversed(list(descendants(node))), node]
        for each in nodes:
            del each.domain.nodes[each]
            each.parent = None
            each.children.clear()
        return nodes

    def tidy(self, place: LowerBlock | LowerDomain) -> None:
        """Forgets the node of a block of the device, or a domain, where nothing is left here."""
        if place.children:
            return
        domain = place if isinstance(place, LowerDomain) else place.domain
        if isinstance(place, LowerBlock) and place.device is not None:
            self._bare(place.device)
            if not any(place.stays):
                place.device.lower = None
                place.device = None
                del domain.nodes[place]
        if not domain.nodes:
            self.domains.pop(domain.digest, None)

    def remove_domain(self, domain: Domain) -> list[LowerBlock]:
        """Takes out all nodes of a domain, also those that hang on the device's blocks."""
        place = self.domains.pop(domain.root, None)
        nodes = [] if place is None else list(place.nodes)
        for node in nodes:
            if node.device is not None:
                node.device.lower = None
                node.device = None
            node.parent = None
            node.children.clear()
        return nodes

    def _make(self, domain: LowerDomain, block: Block, parent_digest: bytes) -> LowerBlock:
        self._last_number += 1
        node = LowerBlock(domain, self._last_number, block, parent_digest)
        domain.nodes[node] = None
        return node


def tops(domain: LowerDomain) -> list[LowerBlock | LowerDomain]:
    """What all nodes of a domain that the device has not hang on, at last."""
    return [domain, *(node for node in domain.nodes if node.device is not None)]


def descendants(place: LowerBlock | LowerDomain) -> Iterator[LowerBlock]:
    """All nodes below, parents before children."""
    stack = list(place.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())
