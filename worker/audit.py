"""Audits cached keys and values: computes tokens again and compares, and puts out of use what differs.

*Sampled* audits take a share of the hits and check them in idle time. Each step of one is complete in itself: it reuses
the leading blocks that were found equal before, computes the next few into blocks of the same tenant, compares those
with what stands in the cache, and gives everything back, so that a request that comes meanwhile waits for one short
step at most. Each part is computed on top of what was checked: the first block that differs is the one that is wrong.
The room is unused, or that of cached blocks of the same tenant, which go for it; without any, nothing is checked.

*Paranoid* audits belong to the steps of requests: those reuse nothing, and every block that they fill is compared with
the one that stands in the cache, before it takes that one's place. What has been cached is never read for an answer.

A block that differs by more than the format's tolerance leaves all tiers with everything below it. Requests that hold
some of that go on, and neither find nor store anything any more. Owned by the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count as counter

import structlog

from cache_store.audit_mode import AuditMode
from cache_store.block_pool import BlockPool
from cache_store.groups import CacheGeometry
from cache_store.pool_sizes import ABSENT
from cache_store.prefix_tree import Block
from cache_store.tokens import count, part
from cache_store.usage import AuditCounts
from worker.audit_samples import Chance, Sample, Samples
from worker.requests import CacheMode, EngineRequest, RequestKey
from worker.sampling import SamplingParams
from worker.scheduler import Schedule
from worker.sequence import ActiveRequest, Sequence
from worker.step_plan import Row, SlotCompare, StepPlan, StepResult

_log = structlog.get_logger(__name__)

STEP_S = 0.05
"""How long a step of a sampled audit should take: so long a request may have to wait for one."""
FIRST_BLOCKS = 4
"""Of a step, before it is known how long steps take."""
_NO_SAMPLING = SamplingParams(
    temperature=0.0, top_p=1.0, top_k=0, seed=0, max_tokens=1, min_tokens=0, stop_token_ids=()
)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A block that stands in the cache, and the compares of a plan between it and one that was computed."""

    owner: ActiveRequest
    standing: Block
    compares: range


class Audits:
    """Of one engine."""

    def __init__(
        self,
        pool: BlockPool,
        geometry: CacheGeometry,
        tolerance: float,
        mode: AuditMode,
        draw: Chance,
        quarantine: Callable[[Block], None],
    ) -> None:
        """`quarantine` puts a block and all below it out of use."""
        self._pool = pool
        self._num_groups = len(geometry.groups)
        self._block_size = geometry.block_size
        self._tolerance = tolerance
        self._mode = mode
        self._quarantine = quarantine
        self._samples = Samples(lambda tenant: pool.quotas.of(tenant).audit_share, draw)
        self._pairs: tuple[_Pair, ...] = ()
        """Of the step that is running."""
        self._keys = counter(1)
        self._num_checked = self._num_mismatches = self._num_skipped = 0

    @property
    def has_samples(self) -> bool:
        """Whether an idle engine has something to check."""
        return len(self._samples) > 0

    @property
    def counts(self) -> AuditCounts:
        """Since the worker's start."""
        num_skipped = self._num_skipped + self._samples.num_skipped
        return AuditCounts(self._num_checked, self._num_mismatches, num_skipped)

    def note_started(self, sequence: Sequence) -> None:
        """A request starts for the first time, with what it reuses."""
        num_full = sequence.num_cached // self._block_size
        if num_full and self._samples.is_chosen(sequence.owner.domain.tenant):
            tokens = sequence.tokens(0, num_full * self._block_size)
            self._samples.add(Sample(sequence.owner.domain, sequence.owner.request.adapter, tokens))

    # steps of an idle engine

    def next_sequence(self, tokens_per_s: float, num_most: int) -> tuple[Sequence, int] | None:
        """What an idle engine computes next, and how many leading tokens of it are checked already."""
        sample = self._samples.first
        if sample is None:
            return None
        wanted = int(tokens_per_s * STEP_S) if tokens_per_s else FIRST_BLOCKS * self._block_size
        num_new = max(1, min(wanted, num_most) // self._block_size) * self._block_size
        stop = min(sample.num_checked + num_new, count(sample.tokens))
        tokens = part(sample.tokens, 0, stop)
        if len(self._pool.audit.standing(sample.domain, tokens, stop)) * self._block_size < stop:
            self.skip()
            return None
        request = EngineRequest(
            key=RequestKey(-next(self._keys)),
            domain=sample.domain,
            prompt=sample.tokens,
            sampling=_NO_SAMPLING,
            num_samples=1,
            cache_mode=CacheMode.READ_WRITE,
            adapter=sample.adapter,
        )
        return Sequence(ActiveRequest(request, 0, 0.0), (), tokens, self._num_groups), sample.num_checked

    def note_checked(self, num_tokens: int) -> None:
        """So many leading tokens of what was computed last have been found equal."""
        sample = self._samples.first
        assert sample is not None
        sample.num_checked = num_tokens
        if num_tokens == count(sample.tokens):
            self._samples.end_first()

    def end(self) -> None:
        """Nothing more is to be computed of what was computed last."""
        self._samples.end_first()

    def skip(self) -> None:
        """What is to be computed next cannot be checked, or not any further."""
        self._samples.end_first()
        self._num_skipped += 1

    # compares of any step

    def with_compares(self, schedule: Schedule) -> Schedule:
        """A step of requests, and what its rows are compared with where everything is."""
        if self._mode is not AuditMode.PARANOID:
            return schedule
        return replace(schedule, plan=self.compare(schedule.plan, schedule.sequences))

    def compare(self, plan: StepPlan, sequences: Iterable[Sequence]) -> StepPlan:
        """The plan with compares of every block that it fills with the one that stands in its place.

        `sequences` are those of its rows.
        """
        compares: list[SlotCompare] = []
        pairs: list[_Pair] = []
        for sequence, row in zip(sequences, plan.rows, strict=True):
            for standing, slots in self._filled(sequence, row):
                first = len(compares)
                for group, (there, own) in enumerate(zip(standing.slots, slots, strict=True)):
                    if ABSENT not in (there, own):
                        compares.append(SlotCompare(group, there, own))
                pairs.append(_Pair(sequence.owner, standing, range(first, len(compares))))
        self._pairs = tuple(pairs)
        return replace(plan, compares=tuple(compares)) if compares else plan

    def judge(self, result: StepResult) -> bool:
        """Whether all compares of the step that has run were equal; puts out of use what was not.

        To be called before what the step computed is committed.
        """
        pairs, self._pairs = self._pairs, ()
        are_equal = True
        for pair in pairs:
            if not pair.standing.in_tree:
                continue  # it hung below one that was put out of use
            self._num_checked += bool(pair.compares)
            differences = [result.differences[index] for index in pair.compares]
            if all(difference <= self._tolerance for difference in differences):  # False for NaN
                continue
            are_equal = False
            self._num_mismatches += 1
            tenant, worst = pair.owner.domain.tenant, max(differences, key=_badness)
            num_blocks = len(self._pool.audit.subtree(pair.standing))
            _log.error(
                "audit_mismatch", tenant=tenant, difference=worst, tolerance=self._tolerance, num_blocks=num_blocks
            )
            self._quarantine(pair.standing)
        return are_equal

    def forget(self) -> None:
        """The step has failed: there is nothing to judge."""
        self._pairs = ()

    def _filled(self, sequence: Sequence, row: Row) -> Iterator[tuple[Block, tuple[int, ...]]]:
        """Blocks that stand in the cache for those that a row fills, and the slots of those."""
        first, end = row.start // self._block_size, row.kv_length // self._block_size
        if first == end or not sequence.owner.may_match:
            return
        num_tokens = end * self._block_size
        standing = self._pool.audit.standing(sequence.owner.domain, sequence.tokens(0, num_tokens), num_tokens)
        for number in range(first, min(end, len(standing))):
            if sequence.blocks[number] is not standing[number]:
                yield standing[number], tuple([table[number] for table in row.block_tables])


def _badness(difference: float) -> float:
    return difference if difference == difference else float("inf")
