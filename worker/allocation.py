"""Blocks of sequences: takes them from the pool, commits what was computed, gives them back.

Every hold that a sequence has on a block is made and ended here. Collects the scrubs and copies that the next plan must
carry. Decides nothing about order or preemption. Owned by the engine's thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import starmap

from cache_store.audit_mode import AuditMode
from cache_store.block_pool import BlockPool
from cache_store.domain import Domain
from cache_store.lower_moves import slot_key, slot_keys
from cache_store.policy import INTERRUPTED
from cache_store.prefix_tree import Block
from cache_store.tier_kind import Elsewhere, TierKind
from cache_store.tiers import Match, PartialMatch, Short
from cache_store.tokens import count
from cache_store.transfers import NO_MOVES, Load, Moves
from cache_store.usage import CachedTokens
from worker.sequence import Sequence
from worker.step_plan import Row, SequenceId, SlotCopy, SlotRef, StepPlan
from worker.swap import Swap
from worker.window_holds import WindowHolds

_NO_MATCH = Match((), None)


@dataclass(frozen=True, slots=True)
class Fit:
    """How a waiting sequence fits into the pool now."""

    num_asked: int
    """Blocks that would be held beside those that are."""
    num_missing: int
    """0: it fits."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """The beginning of a block, to be copied into a sequence's own."""

    sequence: Sequence
    partial: PartialMatch
    target: Block

    def slots(self) -> Iterator[SlotCopy]:
        places = enumerate(zip(self.partial.source.slots, self.target.slots, strict=True))
        return (SlotCopy(group, source, slot, self.partial.num_tokens) for group, (source, slot) in places)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What a plan does beside computing."""

    moves: Moves
    scrubs: tuple[SlotRef, ...]
    loads: tuple[Load, ...]
    copies: tuple[SlotCopy, ...]


class Allocator:
    """Between sequences and the block pool."""

    def __init__(self, pool: BlockPool, block_size: int, swap: Swap, audit: AuditMode) -> None:
        self._pool = pool
        self._audit = audit
        self._block_size = block_size
        self._swap = swap
        swap.bind(self._allocate)
        self._holds = WindowHolds(pool.windows, block_size) if pool.windows else None
        self._scrubs: list[SlotRef] = []
        self._copies: list[_Copy] = []
        """Of the step that is being made."""
        self._sources: list[Block] = []
        """Held until the copies of the step have run."""

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self._block_size)

    def reusable_tokens(self, sequence: Sequence) -> int:
        """Leading tokens that need not be computed now. The last token always is: its logits are needed."""
        if not self._may_reuse(sequence):
            return 0
        return self._pool.cached_tokens(sequence.owner.domain, sequence.prefix, sequence.num_tokens - 1).total

    def full_blocks(self, sequence: Sequence) -> int:
        """Blocks that all samples of the sequence need until they end; the last token of each is never stored."""
        num_prompt = count(sequence.owner.request.prompt)
        num_shared = num_prompt // self._block_size
        num_own = self.blocks_for(num_prompt + sequence.owner.sampling.max_tokens - 1) - num_shared
        return num_shared + len(sequence.samples) * num_own

    def blocks_ahead(self, sequence: Sequence) -> int:
        """Blocks that it still needs once it has those for its tokens."""
        return self.full_blocks(sequence) - self.blocks_for(sequence.num_tokens)

    def place(self, sequence: Sequence, num_ahead: int, num_spare: int) -> Fit:
        """Gives a waiting sequence blocks for all its tokens, as many as possible reused, and `num_ahead` for later.

        Where something is missing nothing has changed: `num_spare` blocks must be available beside them. Where some of
        its blocks come from a lower tier first, it waits for them and holds nothing.
        """
        match, fit = self._fit(sequence, num_ahead, num_spare)
        if fit.num_missing:
            self._pool.release(match.pinned)
        elif not self._swap_in(sequence, match):
            self._pool.note_reuse(sequence.owner.domain, match)
            self._take(sequence, match, num_ahead)
        return fit

    def fit(self, sequence: Sequence, num_ahead: int, num_spare: int) -> Fit:
        """What `place` would say; changes nothing."""
        match, fit = self._fit(sequence, num_ahead, num_spare)
        self._pool.release(match.pinned)
        return fit

    def num_loose(self, sequences: Iterable[Sequence]) -> int:
        """Blocks that nobody but `sequences` holds."""
        held = Counter(block for sequence in sequences for block in (*sequence.blocks, *sequence.reserved))
        return sum(block.ref_count == num for block, num in held.items())

    def place_alone(self, sequence: Sequence, num_reused: int) -> bool:
        """Gives a sequence of an idle engine blocks for all its tokens, of which at most `num_reused` are reused.

        False, and nothing has changed, where its tenant has no room for it without others' blocks, and without those of
        its own that its request's prompt would hit.
        """
        domain, prompt = sequence.owner.domain, sequence.owner.request.prompt
        kept = self._pool.match_and_pin(domain, prompt, count(prompt)).pinned
        match = self._pool.match_and_pin(domain, sequence.prefix, num_reused)
        if match.partial is not None:
            self._pool.release(match.pinned)
            match = self._pool.match_and_pin(domain, sequence.prefix, len(match.blocks) * self._block_size)
        num_new = self.blocks_for(sequence.num_tokens) - len(match.blocks)
        has_room = self._pool.audit.make_room(domain, num_new)
        if has_room:
            self._take(sequence, match, 0)
        else:
            self._pool.release(match.pinned)
        self._pool.release(kept)
        return has_room

    def make_room(self, sequence: Sequence) -> bool:
        """Makes sure that the next token has a slot of its own; False where the pool has none."""
        num_new = self.blocks_for(sequence.num_tokens) - len(sequence.blocks)
        if num_new > len(sequence.reserved) + self._pool.num_available(sequence.owner.domain):
            return False
        if num_new:
            self._grow(sequence, num_new)
        return True

    def open_windows(self, chosen: Iterable[tuple[Sequence, int]]) -> None:
        """Sequences get slots of window groups for the tokens that the step computes of each: there always are some."""
        if self._holds is not None:
            for sequence, num_tokens in chosen:
                end = self.blocks_for(sequence.num_computed + num_tokens)
                if sequence.has_moved or end > sequence.held_to[0]:
                    self._holds.open(sequence, end)

    def fork(self, trunk: Sequence, samples: tuple[int, ...], identifier: SequenceId) -> Sequence:
        """A sequence that shares the trunk's full blocks and will copy its partial last one."""
        twin = trunk.fork(samples, identifier)
        num_full, num_loose = divmod(trunk.num_computed, self._block_size)
        held = tuple(trunk.blocks[: num_full + bool(num_loose)])
        self._pool.pin(held)
        twin.add_blocks(held[:num_full])
        twin.num_committed = trunk.num_committed
        twin.num_computed = trunk.num_computed
        if num_loose:
            twin.copy_from = PartialMatch(held[num_full], num_loose)
        if self._holds is not None:
            self._holds.fork(trunk, twin)
        if trunk.reserved:
            num_own = self.full_blocks(twin) - num_full
            twin.reserved = trunk.reserved[-num_own:] if num_own else []
            del trunk.reserved[len(trunk.reserved) - len(twin.reserved) :]
        return twin

    def commit(self, sequence: Sequence, num_computed: int) -> None:
        """Notes that a step computed `num_computed` more tokens; blocks that became full can be reused from now on."""
        sequence.num_computed += num_computed
        if sequence.owner.may_commit:
            self._commit_full(sequence)
        has_filled = num_computed > 1 or sequence.num_computed % self._block_size == 0
        if has_filled and self._holds is not None:
            self._holds.slide(sequence)

    def _commit_full(self, sequence: Sequence) -> None:
        first, end = sequence.num_committed, sequence.num_computed // self._block_size
        parent = sequence.blocks[first - 1] if first else None
        tokens = sequence.tokens(first * self._block_size, end * self._block_size)
        blocks = sequence.blocks[first:end]
        standing = self._pool.commit(sequence.owner.domain, parent, blocks, tokens)
        num_written = end - first
        for index, (block, there) in enumerate(zip(blocks, standing, strict=True), start=first):
            if there is not block:
                sequence.replace_block(index, there)
                num_written -= 1
        sequence.owner.written_tokens += max(0, num_written) * self._block_size
        sequence.num_committed = max(first, end)
        if self._holds is not None and end > first:
            self._holds.note_branches(sequence, first)

    def release(self, sequence: Sequence, interruption: str = INTERRUPTED) -> None:
        """Gives back all that a sequence holds; how it ended tells what becomes of the blocks."""
        self._pool.release(self._take_back(sequence), sequence.outcome(interruption))

    def release_alone(self, sequence: Sequence) -> None:
        """The same for one that counts as no use of its blocks."""
        self._pool.release(self._take_back(sequence))

    def _take_back(self, sequence: Sequence) -> tuple[Block, ...]:
        for copy in [copy for copy in self._copies if copy.sequence is sequence]:
            self._copies.remove(copy)
            self._free_source(copy.partial.source)
        if self._holds is not None:
            self._holds.end(sequence)
        return sequence.clear_blocks()

    @property
    def num_loading(self) -> int:
        """Blocks on their way to the device. Those that hold them let go of them without anybody's doing."""
        return self._swap.num_running

    @property
    def has_upkeep(self) -> bool:
        """Whether a step has something to do, whoever computes in it."""
        lower = self._pool.lower
        moves = lower is not None and (lower.has_moves or (bool(self._scrubs) and not lower.sources))
        return moves or self._swap.has_loads or len(self._pool.scrubs) > 0 or self._pool.windows.num_dropped > 0

    def drain(self, rows: tuple[Row, ...]) -> Upkeep:
        """What the next plan does beside computing `rows`."""
        scrubs = self._pool.scrubs
        self._scrubs.extend(SlotRef(group, slot) for group, slot in scrubs.drain(scrubs.num_per_plan))
        self._scrubs.extend(starmap(SlotRef, self._pool.windows.take_scrubs(scrubs.num_per_plan)))
        copies = tuple(slots for copy in self._copies for slots in copy.slots())
        self._sources.extend(copy.partial.source for copy in self._copies)
        self._copies.clear()
        lower, loads = self._pool.lower, self._swap.drain()
        if lower is None:
            ready, self._scrubs = tuple(self._scrubs), []
            return Upkeep(NO_MOVES, ready, loads, copies)
        moves = lower.drain(self._written(rows, loads, copies))
        kept = lower.sources  # what stands there is still to be stored
        ready = tuple(scrub for scrub in self._scrubs if slot_key(scrub.group, scrub.slot) not in kept)
        self._scrubs = [scrub for scrub in self._scrubs if slot_key(scrub.group, scrub.slot) in kept]
        return Upkeep(moves, ready, loads, copies)

    def end_step(self, plan: StepPlan) -> None:
        """The plan has run: the sources of its copies are free again, what it stored can be loaded."""
        self._free_sources()
        if self._pool.lower is not None:
            self._pool.lower.end_moves(plan.moves, ok=True)

    def fail_step(self, plan: StepPlan) -> None:
        """The plan has run or not: its scrubs are to be repeated, what it stored or loads may not be used."""
        self._free_sources()
        self._swap.give_up(plan.loads)
        self._scrubs.extend(plan.scrubs)
        if self._pool.lower is not None:
            self._pool.lower.end_moves(plan.moves, ok=False)

    def _written(self, rows: tuple[Row, ...], loads: tuple[Load, ...], copies: tuple[SlotCopy, ...]) -> set[int]:
        """Keys of the slots that the next plan writes to."""
        written = {key for load in loads for key in slot_keys(load.slots)}
        written.update(slot_key(copy.group, copy.target) for copy in copies)
        for row in rows:
            for group in range(len(row.block_tables)):
                written.update(slot_key(group, slot) for slot in row.written_slots(group, self._block_size))
        return written

    def check_invariants(self, sequences: tuple[Sequence, ...], pinned: tuple[Block, ...]) -> None:
        """Raises AssertionError unless the pool's holds are those of `sequences`, which are all that live, and pins."""
        assert not self._sources, "a copy's source is held between steps"
        assert not self._copies, "a copy was planned and never carried out"
        held = Counter(block.uid for block in pinned)
        self._swap.check_invariants()
        held.update(block.uid for block in self._swap.held)
        for sequence in sequences:
            loose = () if sequence.copy_from is None else (sequence.copy_from.source,)
            for block in (*sequence.blocks, *loose, *sequence.reserved):
                held[block.uid] += 1
                assert block.root == sequence.owner.domain.root, "a sequence holds another domain's block"
            assert len(sequence.blocks) <= self.blocks_for(sequence.num_tokens)
            assert sequence.num_committed * self._block_size <= sequence.num_computed
            for group, table in enumerate(sequence.tables):
                if group not in self._pool.windows:
                    assert table == tuple(block.slots[group] for block in sequence.blocks), "a table is out of date"
            for block in sequence.blocks:
                assert block.ref_count > 0
        blocks = {block.uid: block for sequence in sequences for block in sequence.blocks}
        for uid, block in blocks.items():
            assert block.ref_count == held[uid], f"{block} is held {held[uid]} times by sequences and pins"
        assert self._pool.num_held == len(held), "blocks are held that belong to no sequence and no pin"
        if self._holds is not None:
            self._holds.check_invariants(sequences)

    def _free_sources(self) -> None:
        for source in self._sources:
            self._free_source(source)
        self._sources.clear()

    def _free_source(self, source: Block) -> None:
        if self._holds is not None:
            self._holds.let_go_source(source)
        self._pool.release((source,))

    def _fit(self, sequence: Sequence, num_ahead: int, num_spare: int) -> tuple[Match, Fit]:
        domain = sequence.owner.domain
        match = self._match(sequence, sequence.num_tokens - 1)
        num_new = self.blocks_for(sequence.num_tokens) - len(match.blocks) + num_ahead
        if match.partial is not None and self._pool.num_available(domain) < num_new + num_spare:
            self._pool.release(match.pinned)  # its place may be what is missing
            match = self._match(sequence, len(match.blocks) * self._block_size)
            num_new = self.blocks_for(sequence.num_tokens) - len(match.blocks) + num_ahead
        num_asked = num_new + sum(block.ref_count == 1 for block in match.blocks)
        num_missing = max(0, num_new + num_spare - self._pool.num_available(domain))
        return match, Fit(num_asked, num_missing)

    def _take(self, sequence: Sequence, match: Match, num_ahead: int) -> None:
        domain = sequence.owner.domain
        if sequence.owner.is_dropped:
            self._pool.expect_scrubs(domain)
        else:
            self._pool.scrubs.trust(domain.root)
        num_new = self.blocks_for(sequence.num_tokens) - len(match.blocks)
        sequence.add_blocks(match.blocks)
        sequence.num_committed = len(match.blocks)
        sequence.num_computed = len(match.blocks) * self._block_size
        sequence.copy_from = match.partial
        if self._holds is not None:
            self._holds.start(sequence, match)
        self._grow(sequence, num_new)
        if match.partial is not None:
            sequence.num_computed += match.partial.num_tokens
        sequence.num_cached = sequence.num_computed
        sequence.cached_by_tier = self._by_tier(sequence, len(match.blocks))
        sequence.reserved.extend(self._allocate(domain, num_ahead))

    def _swap_in(self, sequence: Sequence, match: Match) -> bool:
        sequence.note_swap()
        if not self._may_reuse(sequence) or not self._swap.begin(sequence):
            return False
        self._pool.release(match.pinned)
        return True

    def _by_tier(self, sequence: Sequence, num_blocks: int) -> CachedTokens:
        """The reused tokens of a sequence, whose first `num_blocks` blocks are reused as they are."""
        tiers = Counter(tier for number, tier in sequence.loaded.items() if number < num_blocks)
        origins = (TierKind.HOST, TierKind.DISK, Elsewhere.PEER)
        below = [tiers[origin] * self._block_size for origin in origins]
        return CachedTokens(sequence.num_cached - sum(below), *below)

    def _may_reuse(self, sequence: Sequence) -> bool:
        return sequence.owner.may_match and self._audit is not AuditMode.PARANOID

    def _match(self, sequence: Sequence, num_tokens: int) -> Match:
        if not self._may_reuse(sequence):
            return _NO_MATCH
        return self._pool.match_and_pin(sequence.owner.domain, sequence.prefix, num_tokens)

    def _grow(self, sequence: Sequence, num_new: int) -> None:
        reserved = tuple(sequence.reserved[:num_new])
        del sequence.reserved[:num_new]
        blocks = (*reserved, *self._allocate(sequence.owner.domain, num_new - len(reserved)))
        if sequence.copy_from is not None:
            self._copies.append(_Copy(sequence, sequence.copy_from, blocks[0]))
            sequence.copied = (len(sequence.blocks), sequence.copy_from.source.number)
            sequence.copy_from = None
        sequence.add_blocks(blocks)

    def _allocate(self, domain: Domain, num_blocks: int) -> tuple[Block, ...]:
        if num_blocks == 0:
            return ()
        granted = self._pool.allocate(domain, num_blocks)
        assert not isinstance(granted, Short), "availability was checked"
        self._scrubs.extend(SlotRef(group, slot) for group, slot in granted.scrubs)
        return granted.blocks
