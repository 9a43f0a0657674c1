"""The prefix tree: domain → blocks by exact tokens.

A block is found by its parent block and its token bytes, compared as they are: no hash decides, so no collision can
happen. Knows nothing of memory pressure; the block pool owns the tree and decides what leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING

from cache_store.digest import Digest, Hasher, block_digest
from cache_store.domain import Domain, DomainTag, TenantId
from cache_store.policy import Use
from cache_store.tokens import TOKEN_BYTES, PackedTokens, common_prefix, part

if TYPE_CHECKING:  # nodes of lower tiers name the device's blocks
    from cache_store.lower_block import LowerBlock

MAX_RUN_CANDIDATES = 32
"""Children of one parent that are searched for the longest common run, newest first."""


class DomainRoot:
    """Where the blocks of one domain hang."""

    __slots__ = ("children", "digest", "domain", "ref_count", "tag")

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.tag: DomainTag = domain.tag
        self.digest: bytes = domain.root
        self.children: dict[bytes, Block] = {}
        self.ref_count = 1
        """Always: a root is never evicted, so who walks up the tree stops there as at a block that is held."""


class Block:
    """`block_size` tokens of keys and values, which has a place in the tree once it is full.

    Its number is its slot in every cache group but window groups, where it has one of the group's own slots or none.
    Owned by the block pool, which has one object per number and takes it for other bytes again, under a new `uid`.
    Others read `uid` and `slots` and hand the object back.
    """

    __slots__ = (
        "children",
        "digest",
        "lower",
        "number",
        "parent",
        "ref_count",
        "root",
        "shared",
        "slots",
        "tenant",
        "tokens",
        "uid",
        "use",
    )

    def __init__(self, number: int, slots: tuple[int, ...]) -> None:
        self.uid = -1
        """Names what it holds; never reused."""
        self.number = number
        self.slots = slots
        """Per cache group; ABSENT in window groups where it has none (`cache_store/window_slots.py` writes those)."""
        self.root = b""
        """Domain root whose bytes the slots hold, or held last; empty: nobody's yet."""
        self.tenant = TenantId("")
        self.ref_count = 0
        self.parent: Block | DomainRoot | None = None
        """None while the block is not in the tree."""
        self.tokens = b""
        """Packed."""
        self.digest: bytes = b""
        self.children: dict[bytes, Block] = {}
        self.shared = False
        """Whether several lines of blocks ever branched off it or below it."""
        self.use: Use | None = None
        """Its last; None before anybody let go of it."""
        self.lower: LowerBlock | None = None
        """What lower tiers have of it, or of blocks right below it."""

    @property
    def in_tree(self) -> bool:
        """Whether the block can be matched."""
        return self.parent is not None

    def __repr__(self) -> str:
        return f"Block(uid={self.uid}, slots={self.slots}, ref_count={self.ref_count}, in_tree={self.in_tree})"


class PrefixTree:
    """Blocks of all domains of one pool."""

    def __init__(self, block_size: int, hasher: Hasher) -> None:
        self._block_size = block_size
        self._hasher = hasher
        self._cut = Struct(f"{block_size * TOKEN_BYTES}s").iter_unpack
        """Cuts packed tokens into those of full blocks."""
        self._roots: dict[bytes, DomainRoot] = {}

    def match(self, domain: Domain, tokens: PackedTokens, max_tokens: int) -> list[Block]:
        """The longest chain of full blocks that are equal to `tokens` and end within `max_tokens`."""
        node: Block | DomainRoot | None = self._roots.get(domain.root)
        chain: list[Block] = []
        if node is None:
            return chain
        width = self._block_size * TOKEN_BYTES
        limit = min(max_tokens * TOKEN_BYTES, len(tokens))
        for (own,) in self._cut(tokens[: max(0, limit) // width * width]):
            node = node.children.get(own)
            if node is None:
                break
            chain.append(node)
        return chain

    def longest_run(
        self,
        domain: Domain,
        chain: list[Block],
        tokens: PackedTokens,
        max_tokens: int,
        fits: Callable[[Block], bool] | None = None,
    ) -> tuple[Block, int] | None:
        """The block after `chain` that shares the longest run of leading tokens with what follows, and that run.

        Bounded by `max_tokens` in all and by MAX_RUN_CANDIDATES; None where nothing is shared. `fits` says which blocks
        can be used; None: all.
        """
        node = chain[-1] if chain else self._roots.get(domain.root)
        if node is None or self._block_size == 1:
            return None  # part of one token is none
        start = len(chain) * self._block_size
        rest = part(tokens, start, min(start + self._block_size, max_tokens))
        best: tuple[Block, int] | None = None
        for child in islice(reversed(node.children.values()), MAX_RUN_CANDIDATES):
            run = common_prefix(child.tokens, rest)
            if run > (best[1] if best else 0) and (fits is None or fits(child)):
                best = (child, run)
        return best

    def insert(
        self, domain: Domain, parent: Block | None, blocks: Sequence[Block], tokens: PackedTokens
    ) -> Sequence[Block]:
        """Puts a run of full blocks below its parent (None: the domain's root); returns the blocks that stand there.

        `tokens` are those of all blocks. Where a block with equal tokens stands already it stays; where none does, what
        is returned is `blocks` itself.
        """
        width = self._block_size * TOKEN_BYTES
        node: Block | DomainRoot = parent if parent is not None else self._open(domain)
        standing: list[Block] = []
        for start in range(0, len(tokens), width):
            found = node.children.get(tokens[start : start + width])
            if found is None:
                new = blocks[len(standing) :] if standing else blocks
                self._hang(node, new, tokens, start)
                return [*standing, *new] if standing else blocks
            standing.append(found)
            node = found
        return standing

    def remove_tail(self, leaf: Block, num_most: int) -> tuple[list[Block], Block | DomainRoot]:
        """Takes a leaf out of the tree, and its ancestors as long as nobody holds them and their last use is the same.

        What left has no use any more. Returns it, leaf first, and what it hung on.
        """
        assert not leaf.children, "only leaves leave the tree: a resident block's ancestors are resident"
        use, block = leaf.use, leaf
        parent: Block | DomainRoot | None = None
        removed: list[Block] = []
        for _ in range(num_most):
            removed.append(block)
            parent = block.parent
            block.parent = block.use = None
            if isinstance(parent, Block) and not (parent.ref_count or parent.shared):
                parent.children.clear()  # of a block that is not shared it was the only one
            else:
                assert parent is not None, "what leaves the tree is in it"
                del parent.children[block.tokens]
                if parent.ref_count or parent.children:
                    if isinstance(parent, DomainRoot) and not parent.children:
                        del self._roots[leaf.root]
                    break
                assert isinstance(parent, Block), "roots are always held"
            if parent.use is not use:
                break
            block = parent
        assert parent is not None
        return removed, parent

    def subtree(self, block: Block) -> list[Block]:
        """A block and all below it, parents first."""
        return [block, *_descendants(block)]

    def remove_subtree(self, block: Block) -> list[Block]:
        """Takes a block and all below it out of the tree, parents first, whether they are held or not."""
        removed, parent = self.subtree(block), block.parent
        assert parent is not None, "what leaves the tree is in it"
        del parent.children[block.tokens]
        for each in removed:
            each.parent = each.use = None
            each.children.clear()
        if isinstance(parent, DomainRoot) and not parent.children:
            del self._roots[parent.digest]
        return removed

    def remove_domain(self, root: bytes) -> list[Block]:
        """Takes all blocks of a domain out of the tree, parents first, whether they are held or not."""
        node = self._roots.pop(root, None)
        removed = [] if node is None else list(_descendants(node))
        for block in removed:
            block.parent = block.use = None
            block.children.clear()
        return removed

    def domains(self) -> list[Domain]:
        """Those that have blocks."""
        return [root.domain for root in self._roots.values()]

    def root_of(self, block: Block) -> DomainRoot:
        """Root of the domain of a block in the tree."""
        return self._roots[block.root]

    def digests(self) -> dict[DomainTag, bytes]:
        """All blocks by domain, packed digests, parent first."""
        return {
            root.tag: b"".join(Digest(block.digest) for block in _descendants(root)) for root in self._roots.values()
        }

    def blocks(self) -> Iterator[Block]:
        """All blocks, parents before children."""
        for root in self._roots.values():
            yield from _descendants(root)

    def check_invariants(self) -> None:
        """Every block hangs where its parent and tokens say, in its own domain."""
        for key, root in self._roots.items():
            assert root.children, "a domain without blocks is forgotten"
            assert root.digest == key
            for block in _descendants(root):
                assert block.root == key, f"{block} hangs in another domain"
                assert len(block.tokens) == self._block_size * TOKEN_BYTES, f"{block} is not full"
                assert block.parent is not None
                assert block.parent.children.get(block.tokens) is block
                assert block.digest == block_digest(block.parent.digest, PackedTokens(block.tokens), self._hasher)

    def _hang(self, node: Block | DomainRoot, blocks: Sequence[Block], tokens: PackedTokens, start: int) -> None:
        """Puts new blocks one below the other, the first below `node`, with the tokens from byte `start` on."""
        if node.children and isinstance(node, Block):
            mark_shared(node)
        hasher, digest = self._hasher, node.digest
        for block, (own,) in zip(blocks, self._cut(tokens[start:]), strict=True):
            block.parent = node
            block.shared = False
            block.tokens = own
            block.digest = digest = hasher(digest + own)
            node.children[own] = block
            node = block

    def _open(self, domain: Domain) -> DomainRoot:
        root = self._roots.get(domain.root)
        if root is None:
            root = self._roots[domain.root] = DomainRoot(domain)
        return root


def mark_shared(block: Block) -> None:
    """Several lines of blocks go on from the block, and so from all before it."""
    node: Block | DomainRoot | None = block
    while isinstance(node, Block) and not node.shared:
        node.shared = True
        node = node.parent


def _descendants(node: Block | DomainRoot) -> Iterator[Block]:
    stack = list(node.children.values())
    while stack:
        block = stack.pop()
        yield block
        stack.extend(block.children.values())
