"""Blocks below the device, and where their bytes lie. State only: `cache_store/lower_tiers.py` owns and changes it.

A node is one block of a domain. It hangs below its parent's node, unless the device has the block too: then it hangs on
the device's block (`device`), whose ancestors are on the device as well, and its parent needs no node at all. So nobody
ever walks from the root. The bytes of a node are its *stays*, at most one per tier; a stay is a *copy* where a tier
above has the block as well, else *sole*.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from cache_store.block_name import BlockName
from cache_store.domain import Domain, DomainTag, TenantId
from cache_store.policy import Use
from cache_store.tier_kind import TierKind
from cache_store.tokens import PackedTokens

if TYPE_CHECKING:  # blocks of the device name their nodes, orders name stays
    from cache_store.lower_order import Order
    from cache_store.prefix_tree import Block

HOST, DISK = 0, 1
"""Places of the tiers in `LowerBlock.stays`."""


class StayState(Enum):
    """How far the bytes are."""

    WAITING = "waiting"
    """To be written by the next plan."""
    MOVING = "moving"
    """Being written."""
    READY = "ready"


class Stay:
    """The bytes of one block in one tier. What an eviction queue knows a block by, it has too."""

    __slots__ = ("children", "is_gone", "is_wiped", "level", "node", "order", "parent", "ref_count", "slot", "state")

    def __init__(self, node: LowerBlock, order: Order, level: int, slot: int) -> None:
        self.node = node
        self.order = order
        """Its tenant's in the tier."""
        self.level = level
        """HOST or DISK."""
        self.slot = slot
        self.state = StayState.WAITING
        self.ref_count = 0
        """Reasons for which it must not be moved: what reads it, what writes it."""
        self.children = 0
        """Stays in this tier of the nodes that hang below."""
        self.parent: LowerBlock | None = None
        """The node while this stay is sole: a copy has no place in the order of eviction."""
        self.is_gone = False
        """Nothing finds it any more; its slot comes free when nothing refers to it."""
        self.is_wiped = False
        """Its bytes are to be overwritten when it does."""

    @property
    def use(self) -> Use | None:
        """The last use of the block."""
        return self.node.use


class LowerDomain:
    """Nodes of one domain; those of first blocks hang on it."""

    __slots__ = ("children", "digest", "domain", "nodes", "tag")

    def __init__(self, domain: Domain, tag: DomainTag) -> None:
        self.domain = domain
        self.digest = domain.root
        self.tag = tag
        self.children: dict[bytes, LowerBlock] = {}
        self.nodes: dict[LowerBlock, None] = {}
        """All of them."""


class LowerBlock:
    """A node. Others may read what it is called and where it lies."""

    __slots__ = (
        "absent",
        "children",
        "device",
        "digest",
        "domain",
        "number",
        "parent",
        "parent_digest",
        "pinned",
        "read_from",
        "ref_count",
        "shared",
        "stays",
        "tokens",
        "use",
    )

    def __init__(self, domain: LowerDomain, number: int, block: Block, parent_digest: bytes) -> None:
        self.domain = domain
        self.number = number
        self.tokens = block.tokens
        self.digest = block.digest
        self.parent_digest = parent_digest
        self.shared = block.shared
        self.device: Block | None = None
        """The block on the device, if it is there too."""
        self.parent: LowerBlock | LowerDomain | None = None
        """None where the device has the block, and of a node that is gone."""
        self.children: dict[bytes, LowerBlock] = {}
        self.stays: list[Stay | None] = [None, None]
        self.absent: frozenset[int] = frozenset()
        """Cache groups of which its bytes have nothing."""
        self.use: Use | None = None
        self.ref_count = 0
        """Loads that read it."""
        self.pinned: list[Stay] = []
        """Stays that they keep where they are."""
        self.read_from: TierKind | None = None
        """Where the last of them reads it."""

    @property
    def host(self) -> Stay | None:
        """Its bytes in the host's memory."""
        return self.stays[HOST]

    @property
    def disk(self) -> Stay | None:
        """Its bytes on disk."""
        return self.stays[DISK]

    def has(self, group: int) -> bool:
        """Whether its bytes have those of a cache group."""
        return group not in self.absent

    @property
    def is_ready(self) -> bool:
        """Whether it can be loaded."""
        return any(stay is not None and stay.state is StayState.READY for stay in self.stays)

    @property
    def tier(self) -> TierKind:
        """Where it would be loaded from."""
        return TierKind.DISK if self.host_slot is None else TierKind.HOST

    @property
    def host_slot(self) -> int | None:
        """Where it lies in the host's pool; None: it lies on disk."""
        stay = self.stays[HOST]
        return stay.slot if stay is not None and stay.state is StayState.READY else None

    @property
    def tenant(self) -> TenantId:
        """Whose it is."""
        return self.domain.domain.tenant

    @property
    def name(self) -> BlockName:
        """What its bytes are compared with."""
        return BlockName(
            self.domain.digest, self.parent_digest, self.digest, PackedTokens(self.tokens), number=self.number
        )

    def __repr__(self) -> str:
        where = [stay and (stay.slot, stay.state.value) for stay in self.stays]
        return f"LowerBlock({self.number}, stays={where}, on_device={self.device is not None})"
