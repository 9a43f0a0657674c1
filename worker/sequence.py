"""What the engine knows of a request and of each of its samples while they live.

State only: who may change what is the scheduler's and the allocator's. Owned by the engine's thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cache_store.domain import Domain
from cache_store.policy import Outcome
from cache_store.prefix_tree import Block
from cache_store.tier_kind import Elsewhere, TierKind
from cache_store.tiers import PartialMatch
from cache_store.tokens import TOKEN_BYTES, PackedTokens, count, pack, part, unpack
from cache_store.usage import CachedTokens
from worker.requests import CacheMode, EngineRequest, Finish, RequestKey
from worker.sampling import SamplingParams
from worker.setbacks import Setbacks
from worker.step_plan import Draw, SequenceId

Origin = TierKind | Elsewhere
"""Where a block lay before it came to the device."""

Age = tuple[int, int]
"""Order of submission, then sample: who is older is served first and preempted last."""


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request between submission and its end."""

    request: EngineRequest
    ordinal: int
    submitted_s: float
    sequences: list[Sequence] = field(default_factory=list)
    """Samples that live. One sequence stands for all samples until the prompt is computed."""
    scheduled_s: float | None = None
    first_token_s: float | None = None
    setbacks: Setbacks = field(default_factory=Setbacks)
    is_dropped: bool = False
    """Its domain was purged: it runs to its end with what it has, and neither finds nor stores anything any more. What
    it computes is overwritten when it ends."""
    is_guarded: bool = False
    """It starts only with all blocks that it will ever need, and is not preempted any more."""
    written_tokens: int = 0
    """Of full blocks that it added to the cache."""

    @property
    def key(self) -> RequestKey:
        return self.request.key

    @property
    def domain(self) -> Domain:
        return self.request.domain

    @property
    def sampling(self) -> SamplingParams:
        return self.request.sampling

    def drop(self) -> None:
        """Its domain was purged."""
        self.is_dropped = True
        for sequence in self.sequences:
            sequence.num_expected = 0
            sequence.flight = None

    @property
    def may_match(self) -> bool:
        return self.request.cache_mode is not CacheMode.BYPASS and not self.is_dropped

    @property
    def may_commit(self) -> bool:
        return self.request.cache_mode is CacheMode.READ_WRITE and not self.is_dropped


@dataclass(frozen=True, slots=True)
class Flight:
    """Blocks that another sequence is about to compute."""

    leader: Sequence
    sequence: SequenceId
    """The leader's id: a leader that was preempted has another one, or none."""
    num_blocks: int

    @property
    def is_on(self) -> bool:
        """Whether waiting still makes sense."""
        return self.leader.id == self.sequence and self.leader.num_committed < self.num_blocks


class SwapIn:
    """Blocks on their way to the device, as those see them that wait for them."""

    __slots__ = ("end_s", "first_block", "num_whole", "tiers")

    def __init__(self, first_block: int, tiers: tuple[Origin, ...]) -> None:
        self.first_block = first_block
        """Of the prompt."""
        self.tiers = tiers
        """Where each block lies."""
        self.end_s: float | None = None
        """None while some are on their way."""
        self.num_whole = 0
        """Leading ones that came whole."""

    def move(self, first_block: int, tiers: tuple[Origin, ...]) -> None:
        """It turned out to be these, before any of them was there."""
        self.first_block, self.tiers = first_block, tiers

    def end(self, num_whole: int, now_s: float) -> None:
        """All of them have come, or will not."""
        self.num_whole = num_whole
        self.end_s = now_s


class Sequence:
    """One sample, or all samples of a request as long as only the prompt is computed."""

    __slots__ = (
        "_tokens",
        "blocks",
        "cached_by_tier",
        "copied",
        "copy_from",
        "expected_at_s",
        "finish",
        "flight",
        "has_fetched",
        "has_moved",
        "has_told",
        "held_from",
        "held_to",
        "id",
        "is_stopped",
        "last_token",
        "loaded",
        "marks",
        "num_cached",
        "num_committed",
        "num_computed",
        "num_expected",
        "num_lost",
        "num_swap_ins",
        "overtaken_s",
        "owner",
        "prefix",
        "reserved",
        "samples",
        "swap_in",
        "swap_since_s",
        "tables",
    )

    def __init__(self, owner: ActiveRequest, samples: tuple[int, ...], tokens: PackedTokens, num_groups: int) -> None:
        self.owner = owner
        self.samples = samples
        """Sample indices that it stands for."""
        self.id: SequenceId | None = None
        """None while it waits."""
        self.prefix = tokens
        """All tokens at the time when it was queued: what it has to compute before it can draw."""
        self._tokens = bytearray(tokens)
        self.last_token = unpack(part(tokens, count(tokens) - 1, count(tokens)))[0]
        self.num_computed = 0
        """Leading tokens whose keys and values stand in its blocks."""
        self.num_committed = 0
        """Leading blocks that stand in the prefix tree."""
        self.blocks: list[Block] = []
        self.tables: tuple[tuple[int, ...], ...] = ((),) * num_groups
        """Per group: the slots of `blocks`; in window groups those that it holds, as of its last step."""
        self.held_from = [0] * num_groups
        self.held_to = [0] * num_groups
        """Per window group: it holds the slots of the blocks from the one to the other."""
        self.has_moved = False
        """Whether its tables are not those of its holds any more."""
        self.marks: set[int] = set()
        """Numbers of blocks up to which others are likely to share its prefix."""
        self.reserved: list[Block] = []
        """Held for tokens that are still to come."""
        self.copy_from: PartialMatch | None = None
        """A held block to copy before the first write, as the block after `blocks`."""
        self.copied: tuple[int, int] | None = None
        """Which of `blocks` began as a copy, and the number of the block that it was copied from."""
        self.flight: Flight | None = None
        self.num_expected = 0
        """While it waits: tokens that are likely to be reused, for estimates only."""
        self.expected_at_s = -math.inf
        """When that was estimated."""
        self.overtaken_s: float | None = None
        """While it waits: since when younger ones of its tenant have been served before it."""
        self.num_cached = 0
        """Tokens of the prompt that were reused at its last start."""
        self.cached_by_tier = CachedTokens()
        """The same, by the tier where they lay before it."""
        self.swap_in: SwapIn | None = None
        """While it waits: what it waited for last, or does now."""
        self.swap_since_s = 0.0
        """When it began to wait for that."""
        self.num_swap_ins = 0
        """That it has waited for since it was queued."""
        self.has_fetched = False
        """Whether blocks of another worker were ordered for it since it was queued, or awaited for too long."""
        self.loaded: dict[int, Origin] = {}
        """Blocks that came for it since it was queued, by their number in its prompt."""
        self.num_lost = 0
        """Leading tokens that were computed before its last preemption: to compute them again is a loss."""
        self.has_told = False
        """That it used its prompt: when it was preempted, or by the sequence that it was forked off."""
        self.is_stopped = False
        """Preempted, and in no step since."""
        self.finish: Finish | None = None
        """Why its last sample ended; None while it lives, and where it was cancelled or preempted."""

    @property
    def age(self) -> Age:
        return (self.owner.ordinal, self.samples[0])

    @property
    def num_tokens(self) -> int:
        return len(self._tokens) // TOKEN_BYTES

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next can be drawn."""
        return self.num_tokens - self.num_computed

    @property
    def waits_for_flight(self) -> bool:
        """Whether somebody is about to compute what it could reuse."""
        return self.flight is not None and self.flight.is_on

    @property
    def waits_for_swap(self) -> bool:
        """Whether blocks are on their way for it."""
        return self.swap_in is not None and self.swap_in.end_s is None

    @property
    def waits_for_others(self) -> bool:
        """Whether there is no use in trying to start it now."""
        return self.waits_for_flight or self.waits_for_swap

    @property
    def is_at_rest(self) -> bool:
        """Whether it holds nothing and nothing of it is computed."""
        holds = bool(self.blocks or self.reserved) or self.copy_from is not None
        return self.id is None and not holds and self.num_computed == 0

    @property
    def is_prefilling(self) -> bool:
        """Whether it runs and has not yet computed what it was queued with."""
        return self.id is not None and self.num_computed < count(self.prefix)

    @property
    def num_output(self) -> int:
        return self.num_tokens - count(self.owner.request.prompt)

    def outcome(self, interruption: str) -> Outcome:
        """How it ended, for whoever keeps its blocks; `interruption` where no sample of it came to its end."""
        request = self.owner.request
        if self.finish is None:
            stop = interruption
        else:
            stop = f"stop:{self.last_token}" if self.finish is Finish.STOP else str(self.finish)
        return Outcome(
            prompt_tokens=count(request.prompt),
            output_tokens=self.num_output,
            cached_tokens=self.num_cached,
            stop=stop,
            session=request.session,
            session_end=request.session_end,
            ttl_s=request.ttl_s,
            is_repeat=self.has_told,
        )

    def wait_for(self, swap_in: SwapIn, now_s: float) -> None:
        """Waits until those blocks have come."""
        self.note_swap()
        self.swap_in = swap_in
        self.swap_since_s = now_s
        self.num_swap_ins += 1

    def note_swap(self) -> None:
        """Takes down what it waited for, once that has come."""
        if self.swap_in is None or self.swap_in.end_s is None:
            return
        first = self.swap_in.first_block
        self.loaded.update(enumerate(self.swap_in.tiers[: self.swap_in.num_whole], start=first))
        self.owner.setbacks.swap_s += self.swap_in.end_s - self.swap_since_s
        self.swap_in = None

    def stop_waiting(self, now_s: float) -> None:
        """What it waits for takes too long: it goes on without, and waits for no other worker's blocks again."""
        self.owner.setbacks.swap_s += now_s - self.swap_since_s
        self.swap_in = None
        self.has_fetched = True

    def tokens(self, start: int, stop: int) -> PackedTokens:
        """Tokens `start` to `stop`, exclusive."""
        return PackedTokens(bytes(self._tokens[start * TOKEN_BYTES : stop * TOKEN_BYTES]))

    def append(self, token: int) -> None:
        """Adds a drawn token."""
        self._tokens += pack((token,))
        self.last_token = token

    def fork(self, samples: tuple[int, ...], identifier: SequenceId) -> Sequence:
        """A running sequence with the same tokens that stands for `samples`; its blocks are the caller's to give."""
        twin = Sequence(self.owner, samples, self.prefix, len(self.tables))
        twin._tokens = bytearray(self._tokens)
        twin.has_told = True
        twin.last_token = self.last_token
        twin.num_cached = self.num_cached
        twin.cached_by_tier = self.cached_by_tier
        twin.num_lost = self.num_lost
        twin.id = identifier
        return twin

    def rewind(self) -> None:
        """Back to where nothing is computed, with everything drawn so far as its prefix."""
        self.id = None
        self.is_stopped = self.has_told = True
        self.num_lost = max(self.num_lost, self.num_computed)
        self.prefix = self.tokens(0, self.num_tokens)
        self.num_computed = self.num_committed = self.num_swap_ins = 0
        self.has_fetched = False
        self.copied = None
        self.loaded.clear()
        self.marks.clear()
        assert self.is_at_rest, "it was released before"

    def add_blocks(self, blocks: tuple[Block, ...]) -> None:
        """Appends to blocks and tables."""
        self.blocks.extend(blocks)
        self.tables = tuple(
            (*table, *(block.slots[group] for block in blocks)) for group, table in enumerate(self.tables)
        )

    def replace_block(self, index: int, block: Block) -> None:
        """Puts another block with equal contents in a block's place."""
        self.blocks[index] = block
        self.has_moved = True
        self.tables = tuple(
            (*table[:index], block.slots[group], *table[index + 1 :]) for group, table in enumerate(self.tables)
        )

    def clear_blocks(self) -> tuple[Block, ...]:
        """Takes all held blocks away, in position order."""
        held = (*self.blocks, *(() if self.copy_from is None else (self.copy_from.source,)), *self.reserved)
        self.blocks.clear()
        self.reserved.clear()
        self.copy_from = None
        self.tables = ((),) * len(self.tables)
        return held

    def draws(self) -> tuple[Draw, ...]:
        """What to draw once everything is computed."""
        sampling = self.owner.sampling
        banned = sampling.stop_token_ids if self.num_output < sampling.min_tokens else ()
        return tuple(
            Draw(
                sample_index=sample,
                position=self.num_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                seed=sampling.seed,
                banned=banned,
            )
            for sample in self.samples
        )
