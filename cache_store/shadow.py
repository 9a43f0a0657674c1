"""What a tenant would have hit alone with its guarantee: a least-recently-used cache of names, without any blocks.

It follows a sample of blocks, drawn by their digests (as in SHARDS, Waldspurger et al., FAST 2015), and compares block
by block with what the tenant really hits. Two questions are answered by it: does the guarantee bring its tenant
anything (where not, it may be lent), and does the tenant's order keep at least what LRU would (where not, it becomes
LRU). Knows no quotas and evicts nothing; owned by the account of the tenant.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from cache_store.prefix_tree import Block

SMALL_POOL = 2_048
"""Blocks of a pool of which all are followed."""
NUM_SAMPLED = 4_096
"""Blocks of a large pool that are followed at least; an eighth of one between the two."""
_MAX_DOUBLINGS = 6
_CLEAR_DEVIATIONS = 3
"""Standard deviations by which something is clear that is judged again after every request. A sum of gains and losses
that are equally likely exceeds x of them with a probability of exp(-x² / 2) at most (de la Peña, Annals of Probability
27, 1999): one in seven for two of them, which happens by chance every few turnovers, one in ninety for three."""


@dataclass(frozen=True, slots=True)
class WatchRules:
    """When a guarantee counts as useless, and when a policy as worse than LRU."""

    useless_density: float = 0.01
    """Blocks hit of blocks asked for, below which a guarantee may be useless; 0: it never is."""
    turnovers: int = 4
    """Evidence that it is useless: blocks asked for, as a multiple of the guarantee."""
    min_evidence: int = 256
    """Sampled blocks asked for, at least, before anything is judged."""
    curve_room: int = 0
    """Blocks that are followed for the curves of reuse of all tenants; 0: there are none."""


DEFAULT_RULES = WatchRules()


class Sample:
    """Which blocks of a pool are followed."""

    __slots__ = ("_below",)

    def __init__(self, num_blocks: int) -> None:
        fraction = 1 if num_blocks < SMALL_POOL else max(8, 1 << max(0, (num_blocks // NUM_SAMPLED).bit_length() - 1))
        self._below = max(1, 256 // fraction)
        """First byte of digests."""

    def part_of(self, num_blocks: int) -> int:
        """How many of `num_blocks` are followed, on average; at least one."""
        return max(1, num_blocks * self._below // 256)

    def of(self, blocks: Sequence[Block]) -> list[Block]:
        """Those that are followed."""
        below = self._below
        return [block for block in blocks if block.digest[0] < below]


@dataclass(slots=True)
class _Tally:
    """What was asked for since something was judged."""

    num_blocks: int = 0
    """Followed or not."""
    num_blocks_hit: int = 0
    num_asked: int = 0
    """Of those that are followed, as all below."""
    num_hit: int = 0
    """By the tenant."""
    num_lost: int = 0
    """By the shadow alone."""
    num_gained: int = 0
    """By the tenant alone."""
    sum_of_squares: int = 0
    """Of what single requests lost or gained: blocks of one request are hit or missed together."""

    def add(self, num_asked: int, num_hit: int, num_lost: int, num_gained: int) -> None:
        """One request."""
        self.num_asked += num_asked
        self.num_hit += num_hit
        self.num_lost += num_lost
        self.num_gained += num_gained
        self.sum_of_squares += (num_lost - num_gained) ** 2

    @property
    def is_behind(self) -> bool:
        """Whether the shadow hits clearly more: by some standard deviations, and by one in a hundred."""
        num_behind = self.num_lost - self.num_gained
        num_shadow = self.num_hit + num_behind
        is_clear = num_behind > _CLEAR_DEVIATIONS * math.sqrt(self.sum_of_squares)
        return is_clear and 100 * num_behind > num_shadow


class Watch:
    """Of one tenant with a guarantee. What is judged wrongly takes twice as much evidence the next time."""

    __slots__ = (
        "_for_guard",
        "_for_lending",
        "_guard_doublings",
        "_held",
        "_lending_doublings",
        "_num_guaranteed",
        "_rules",
        "is_useless",
        "prefers_lru",
    )

    def __init__(self, rules: WatchRules) -> None:
        self._rules = rules
        self._num_guaranteed = 0
        self._held: OrderedDict[bytes, None] = OrderedDict()
        self._for_lending = _Tally()
        self._for_guard = _Tally()
        self._lending_doublings = 0
        self._guard_doublings = 0
        self.is_useless = False
        """Whether the guarantee brings nothing that its tenant would not have without it."""
        self.prefers_lru = False
        """Whether LRU with the guarantee alone hits more than the tenant does."""

    def guarantee(self, num_blocks: int) -> None:
        """Followed blocks that the guarantee has room for. What is known of another guarantee is forgotten."""
        if num_blocks == self._num_guaranteed:
            return
        self._num_guaranteed = num_blocks
        self._for_lending, self._for_guard = _Tally(), _Tally()
        self._lending_doublings = self._guard_doublings = 0
        self.is_useless = self.prefers_lru = False

    def ask(self, num_blocks: int, num_hit: int) -> None:
        """The tenant asked for so many blocks, followed or not, and had some: few blocks may have most hits."""
        self._for_lending.num_blocks += num_blocks
        self._for_lending.num_blocks_hit += num_hit

    def use(self, blocks: Sequence[Block]) -> None:
        """A request is over, and these are the followed ones of its blocks, first to last, as they were used before it.

        What has not been used before was computed by it. Of one request the tail goes first.
        """
        held = self._held
        num_hit = num_lost = num_gained = 0
        for block in reversed(blocks):
            name = block.digest
            if block.use is None:
                num_lost += name in held
            else:
                num_hit += 1
                num_gained += name not in held
            held[name] = None
            held.move_to_end(name)
        while len(held) > self._num_guaranteed:
            held.popitem(last=False)
        for tally in (self._for_lending, self._for_guard):
            tally.add(len(blocks), num_hit, num_lost, num_gained)

    def judge(self) -> None:
        """Answers both questions again, where there is evidence enough."""
        self._judge_lending()
        self._judge_order()

    def _judge_lending(self) -> None:
        tally = self._for_lending
        if self.is_useless and tally.num_lost > tally.num_gained:
            self.is_useless = False
            self._lending_doublings = min(self._lending_doublings + 1, _MAX_DOUBLINGS)
        elif tally.num_asked < self._evidence(self._rules.turnovers, self._lending_doublings):
            return
        else:
            density = tally.num_blocks_hit / max(1, tally.num_blocks)
            self.is_useless = density < self._rules.useless_density and tally.num_lost <= tally.num_gained
        self._for_lending = _Tally()

    def _judge_order(self) -> None:
        """What it lags behind a little goes on counting; a lead is forgotten, so that it covers nothing up later."""
        tally = self._for_guard
        if self.prefers_lru:
            if tally.num_asked < self._evidence(1, self._guard_doublings):
                return
            if not tally.is_behind:
                self.prefers_lru = False
                self._guard_doublings = min(self._guard_doublings + 1, _MAX_DOUBLINGS)
        elif tally.num_asked >= self._rules.min_evidence and tally.is_behind:
            self.prefers_lru = True
        elif tally.num_asked < self._evidence(1, 0) or tally.num_lost > tally.num_gained:
            return
        self._for_guard = _Tally()

    def _evidence(self, turnovers: int, doublings: int) -> int:
        return max(self._rules.min_evidence, turnovers * self._num_guaranteed) << doublings
