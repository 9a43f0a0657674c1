"""The tiers below the device, as numbers: what the device evicts goes to the host's memory, from there to disk.

Exclusive along each line of blocks: those on the device, below them those in the host's memory, below them those on
disk. The union is prefix-closed: a block that no tier has takes everything below it along. Found is what hangs below
the device's own chain, by exact tokens under the domain; no digest decides.

A block that comes back to the device leaves its bytes behind as a *copy*: the first to go, and no write when the device
evicts the block again. Demotion is admitted by what the tenant's policy expects of the blocks. Moves no bytes: plans do
(`cache_store/transfers.py`), and completion gates use. Owned by the pool, on the engine's thread; no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

from cache_store.clock import Clock
from cache_store.domain import Domain, DomainTag, TenantId
from cache_store.event_log import EventLog
from cache_store.events import BlockChange
from cache_store.groups import CacheGeometry
from cache_store.ledger import Ledger
from cache_store.lower_block import DISK, HOST, LowerBlock, LowerDomain, Stay, StayState
from cache_store.lower_check import check_domain, check_tier
from cache_store.lower_moves import ALL_SLOTS, PendingMoves
from cache_store.lower_stays import Stays
from cache_store.lower_tail import Tail, absent_groups, num_loose, wants_disk, wants_host
from cache_store.lower_tier import Leaving, LowerTier, Offer
from cache_store.lower_tree import LowerTree, descendants, tops
from cache_store.policy import Use
from cache_store.prefix_tree import Block, DomainRoot, mark_shared
from cache_store.quota import QuotaTable
from cache_store.scrubs import num_scrubbed
from cache_store.tier_kind import TierKind, TierSizes
from cache_store.tokens import PackedTokens
from cache_store.transfers import NO_MOVES, Moves, Spill, TransferId, TransferResult
from cache_store.usage import TierLoad


class LowerTiers:
    """Host and disk of one worker."""

    def __init__(
        self,
        sizes: TierSizes,
        geometry: CacheGeometry,
        clock: Clock,
        device: Ledger,
        events: EventLog,
        bare: Callable[[Block], None],
    ) -> None:
        """`bare` is told of blocks of the device that have nothing below them here any more."""
        self._clock = clock
        self._events = events
        self._tree = LowerTree(geometry.block_size, bare)
        self._moves = PendingMoves(num_scrubbed(geometry.bytes_per_block, sizes.num_host_blocks))
        to_disk = Leaving(self._leave_host, self._drop_copy, self._free_host)
        away = Leaving(self._leave_disk, self._drop_copy, self._free_disk)
        self._host = LowerTier(HOST, sizes.num_host_blocks, clock, device, to_disk)
        self._disk = LowerTier(DISK, sizes.num_disk_blocks, clock, device, away)
        self._tiers = (self._host, self._disk)
        self._stays = Stays(self._tree, self._tiers, self._moves, events)
        self._written: list[LowerDomain | None] = [None] * sizes.num_host_blocks
        """Whose bytes are in a host slot, or were last."""
        self._owners: list[Stay | None] = [None] * sizes.num_host_blocks
        """Who has a host slot."""
        self.num_demoted = 0
        """Blocks that the device evicted and that were not gone with that."""

    # what the engine asks for

    def find(
        self, domain: Domain, chain: Sequence[Block], tokens: PackedTokens, max_tokens: int
    ) -> tuple[LowerBlock, ...]:
        """Full blocks that follow the device's `chain` and can be loaded, within `max_tokens`. Changes nothing."""
        return self._tree.find(domain, chain, tokens, max_tokens)

    def hold(self, blocks: Iterable[LowerBlock]) -> None:
        """Loads read them: they stay where they are."""
        for node in blocks:
            node.ref_count += 1
            node.read_from = node.tier
            if node.ref_count == 1:
                for _, stay in self._stays.of(node):
                    self._stays.pin(stay)

    def let_go(self, blocks: Iterable[LowerBlock]) -> None:
        """Loads have ended. What was forgotten meanwhile is gone now."""
        for node in blocks:
            assert node.ref_count > 0, "let go more often than held"
            node.ref_count -= 1
            if node.ref_count == 0:
                pinned, node.pinned = node.pinned, []
                self._stays.release(pinned)
                self._stays.watch_expiry(node)

    def new_transfer(self) -> TransferId:
        """A name for a load, or a spill."""
        return self._moves.new_transfer()

    @property
    def has_moves(self) -> bool:
        """Whether the next plan has something to move."""
        return self._moves.has_some

    @property
    def sources(self) -> set[int]:
        """Slots of the device, by their keys, that are still to be stored: they keep what they hold."""
        return self._moves.sources()

    def drain(self, written: Container[int] = ALL_SLOTS) -> Moves:
        """Moves for the next plan, which writes to the device's slots of these keys (`lower_moves.slot_key`).

        What it stores can be used when `end_moves` has said that it ran.
        """
        if self._moves.is_empty:
            return NO_MOVES
        taken = self._moves.take(written)
        for stay in taken.stored:
            stay.state = StayState.MOVING
            self._host.hold(stay)
            self._written[stay.slot] = stay.node.domain
        for slot in taken.moves.host_scrubs:
            self._written[slot] = None
        for spill in taken.moves.spills:
            stay = self._moves.spilling[spill.id]
            stay.state = StayState.MOVING
            self._disk.hold(stay)
        self._host.num_stored += len(taken.stored)
        self._disk.num_stored += len(taken.moves.spills)
        return taken.moves

    def end_moves(self, moves: Moves, ok: bool) -> None:
        """The plan with these moves has ended. Where it raised, nothing that it stored is used."""
        if moves is NO_MOVES:
            return
        taken = self._moves.end(moves)
        if not ok:
            self._moves.ask_again(taken)
            self._host.num_failed += len(taken.stored)
        for stay in taken.stored:
            stay.state = StayState.READY if ok else StayState.WAITING
            if not (ok or stay.is_gone):
                self._stays.lose(stay)
        self._stays.release(taken.stored)

    def finish_spill(self, result: TransferResult) -> None:
        """A spill has ended: its block can be loaded, or is not on disk."""
        stay = self._moves.spilling.pop(result.id)
        stay.state = StayState.READY if result.ok else StayState.WAITING
        if not result.ok:
            self._disk.num_failed += 1
            if not stay.is_gone:
                self._stays.lose(stay)
        self._disk.let_go(stay)

    def note_loaded(self, block: LowerBlock, seconds: float) -> None:
        """A load has ended well."""
        self._tier(block.read_from or block.tier).note_loaded(seconds)

    def lose(self, block: LowerBlock) -> None:
        """Its bytes are not there, or not those that they should be: it is forgotten, with all below it."""
        self._tier(block.read_from or block.tier).num_failed += 1
        if block.device is not None:
            self._take_out_all(block)
            self._tree.tidy(block)
        elif block.parent is not None:
            self._stays.forget(block)

    # what is told

    def load_block_s(self, tier: TierKind) -> float:
        """Measured seconds to read one block back; 0 before the first measurement."""
        return self._tier(tier).load_block_s

    def loads(self) -> tuple[TierLoad, ...]:
        """Of the tiers that there are."""
        return tuple(tier.load() for tier in self._tiers if tier.num_blocks)

    def used_by(self, tenant: TenantId) -> tuple[int, int]:
        """Blocks of the tenant in the host's memory and on disk."""
        return self._host.used_by(tenant), self._disk.used_by(tenant)

    def domains(self) -> list[Domain]:
        """Those of which something is here."""
        return [each.domain for each in self._tree.domains.values()]

    def has(self, domain: Domain) -> bool:
        """Whether something of it is here."""
        return domain.root in self._tree.domains

    def leaves(self) -> Iterator[LowerBlock]:
        """Blocks that the device has not and below which nothing is."""
        return (node for each in self._tree.domains.values() for node in each.nodes if not node.children)

    def digests(self) -> Iterator[tuple[DomainTag, bytes]]:
        """Blocks that the device has not, by domain, parents first."""
        for domain in self._tree.domains.values():
            yield domain.tag, b"".join([node.digest for top in tops(domain) for node in descendants(top)])

    # what the pool tells

    def set_quotas(self, quotas: QuotaTable) -> None:
        """Other quotas from now on, on every tier."""
        for tier in self._tiers:
            tier.set_quotas(quotas)

    def expire(self) -> None:
        """Drops what nobody used for its time to live."""
        self._stays.expire(self._clock.monotonic_s())

    def adopt(self, domain: Domain, blocks: Sequence[Block]) -> Sequence[Block]:
        """Blocks that have come to the device, one below the other; returns those that were in no tier.

        What is here of the others becomes a copy.
        """
        above = blocks[0].parent
        place = above.lower if isinstance(above, Block) else self._tree.domains.get(domain.root)
        if place is None:
            return blocks
        for number, block in enumerate(blocks):
            node = place.children.get(block.tokens)
            if node is not None:
                self._adopt(block, node)
            if place.children and isinstance(place, LowerBlock) and place.device is not None:
                mark_shared(place.device)  # other lines of blocks go on from it
            self._tree.tidy(place)
            if node is None:
                return blocks[number:]
            place = node
        return ()

    def demote(self, removed: Sequence[Block], above: Block | DomainRoot, use: Use, root: DomainRoot) -> None:
        """Blocks that the device has evicted, leaf first, all of one use; the last one hung on `above`.

        Those that are refused, and all below them, are gone from all tiers, which is noted as events.
        """
        nodes = [block.lower for block in removed]
        for block, node in zip(removed, nodes, strict=True):
            if node is not None and node.absent > absent_groups(block.slots):
                self._take_out_all(node)  # the device has more of it
        wants = wants_host(nodes)
        held = self._stays.keep(node for node in nodes if node is not None)
        num_lost = self._num_lost(self._host, removed[0].tenant, Tail(use, wants, num_loose(nodes)))
        self._host.num_dropped += sum(wants[:num_lost])
        for block in removed[:num_lost]:
            self.drop_block(block, root.tag)
        if num_lost < len(removed):
            place = self._tree.place_of(above, root)
            are_new = not any(nodes[num_lost:])
            for at in range(len(removed) - 1, num_lost - 1, -1):
                place = self._lay_down(removed[at], place, use)
                if wants[at]:
                    self._store(place, removed[at].slots)
                if at == num_lost or not are_new:  # of a new tail only the leaf may go
                    self._stays.rank(place)
        self.num_demoted += len(removed) - num_lost
        self._stays.release(held)

    def close(self, tenant: TenantId) -> None:
        """Forgets what is known of a deleted tenant, as soon as it has no blocks."""
        for tier in self._tiers:
            tier.close(tenant)

    def drop(self, domains: Collection[Domain], tenants: Collection[TenantId]) -> tuple[int, int]:
        """Forgets `domains`, which are of `tenants`, at once; how many blocks in the host's memory and on disk.

        Makes no events: the domains as a whole are gone. All unused host slots with the tenants' bytes are scrubbed,
        what is moved or read just now as soon as that has ended.
        """
        counts = [0, 0]
        for domain in domains:
            for node in self._tree.remove_domain(domain):
                for tier, stay in self._stays.of(node):
                    counts[tier.level] += 1
                    self._stays.take_out(stay)
        for slot, written in enumerate(self._written):
            owner = self._owners[slot]
            if written is None or written.domain.tenant not in tenants:
                continue
            if owner is not None and owner.is_gone:
                owner.is_wiped = True
            elif owner is None or owner.state is StayState.WAITING:
                self._moves.scrubs[slot] = None
        if self._disk.num_blocks:
            self._moves.forget_domains(domain.root for domain in domains)
        return counts[HOST], counts[DISK]

    def check_invariants(self) -> None:
        """Raises AssertionError where the books do not agree; walks everything."""
        for domain in self._tree.domains.values():
            check_domain(domain)
        for tier in self._tiers:
            check_tier(tier, self._tree.domains.values())
        assert {slot for slot, owner in enumerate(self._owners) if owner is None} == set(self._host.unused)

    # nodes

    def _lay_down(self, block: Block, place: LowerBlock | LowerDomain, use: Use) -> LowerBlock:
        is_known = block.lower is not None
        node = self._tree.lay_down(block, place)
        node.use = use
        if is_known:
            for tier, _ in self._stays.of(node):
                tier.hang(node)
        return node

    def _take_out_all(self, node: LowerBlock) -> None:
        for _, stay in self._stays.of(node):
            self._stays.take_out(stay)

    def _store(self, node: LowerBlock, slots: tuple[int, ...]) -> None:
        stay = self._host.add(node)
        self._owners[stay.slot] = stay
        stay.parent = node
        if node.ref_count:
            self._stays.pin(stay)
        node.absent = absent_groups(slots)
        self._moves.stores[stay] = slots
        if self._host.ledger.of(node.tenant).strict:
            self._moves.urgent.add(stay)

    def _adopt(self, block: Block, node: LowerBlock) -> None:
        """The device has the node's block again."""
        for tier, _ in self._stays.of(node):
            tier.unhang(node)
        place = node.parent
        self._tree.take_up(node, block)
        if isinstance(place, LowerBlock):
            self._stays.watch_expiry(place)
        block.use = node.use
        self._stays.rank(node)

    def drop_block(self, block: Block, tag: DomainTag) -> None:
        """A block of the device has left all tiers."""
        node = block.lower
        if node is not None:
            for child in list(node.children.values()):
                self._stays.forget(child)
            self._take_out_all(node)
        if block.lower is not None:
            self._tree.tidy(block.lower)
        self._events.add(tag, BlockChange.REMOVED, (block,))

    def _tier(self, kind: TierKind) -> LowerTier:
        return self._disk if kind is TierKind.DISK else self._host

    # what leaves a tier

    def _num_lost(self, tier: LowerTier, tenant: TenantId, tail: Tail) -> int:
        """How many blocks of a tail find no room in a tier: what has nothing below it is the first."""
        is_wanted = tier.order_of(tenant).is_wanted(tail.use, self._clock.monotonic_s())
        least = 0 if is_wanted else tail.num_loose
        num_wanted, num_firm = sum(tail.wants[least:]), sum(tail.wants[tail.num_loose :])
        return tail.num_lost(tier.make_room(tenant, Offer(tail.use, num_wanted, num_firm)), least)

    def _leave_host(self, stays: list[Stay]) -> None:
        """To disk, or away."""
        nodes = [stay.node for stay in stays]
        top, use = nodes[-1], nodes[-1].use
        assert use is not None
        tail = Tail(use, wants_disk(nodes), num_loose(nodes))
        held = self._stays.keep(node for node in nodes if node.disk is not None)
        can_write = stays[0].state is StayState.READY and top.domain.digest not in self._moves.forgotten_domains
        num_lost = self._num_lost(self._disk, top.tenant, tail) if can_write else tail.num_lost(0, 0)
        if top.host is not None:  # it might have gone with what made room for it
            self._disk.num_dropped += sum(tail.wants[:num_lost])
            if num_lost:
                self._stays.forget(nodes[num_lost - 1])
            for node in reversed(nodes[num_lost:]):
                self._sink(node)
        self._stays.release(held)

    def _sink(self, node: LowerBlock) -> None:
        """From the host's memory to disk, where it may be already."""
        host = node.host
        assert host is not None
        if node.disk is None:
            is_firm = self._disk.ledger.of(node.tenant).strict
            spill = Spill(self.new_transfer(), host.slot, node.name, node.tenant, is_firm)
            self._moves.spills[self._disk.add(node)] = spill
        self._stays.take_out(host)
        self._stays.rank(node)

    def _leave_disk(self, stays: list[Stay]) -> None:
        self._stays.forget(stays[-1].node)

    def _drop_copy(self, stay: Stay) -> None:
        self._stays.take_out(stay)
        self._tree.tidy(stay.node)

    def _free_host(self, stay: Stay) -> None:
        self._owners[stay.slot] = None
        if stay.is_wiped:
            self._moves.scrubs[stay.slot] = None

    def _free_disk(self, stay: Stay) -> None:
        if stay.state is StayState.READY:
            self._moves.forgotten[stay.node.name] = None
