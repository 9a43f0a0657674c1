"""A runner without tensors: its tokens tell whether scheduling, block tables, copies and scrubs were right.

Keeps the records of `worker/digest_rule.py` in one pool of slots per group, exactly where the plan says. Reading a slot
that was never filled fails the row; any other wrong slot changes the token. With durations given it takes as long as
a model would, so that cluster and load tests see real queues. Owned by the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from cache_store.adapter_files import AdapterContent
from cache_store.domain import NO_ADAPTER, AdapterDigest, KvFormat
from cache_store.groups import CacheGeometry, CacheGroup, GroupKind
from cache_store.transfers import Transfers
from worker.block_copier import ArrayCopier
from worker.digest_rule import (
    CONTEXT,
    POISON,
    RECORD_WIDTH,
    NoTokenLeftError,
    Records,
    first_context,
    first_readable,
    make_records,
    next_token,
)
from worker.mover import DeviceOnly, MakeMover
from worker.plan_check import check_plan
from worker.runner import ModelInfo, PreparedAdapter
from worker.step_plan import Row, RowFailure, SlotCompare, StepPlan, StepResult

LAYOUT_VERSION = 1
_BYTES_PER_RECORD = RECORD_WIDTH * 8


@dataclass(frozen=True, slots=True)
class Durations:
    """How long a step takes: `step_s + tokens × token_s` over the tokens of rows that prefill."""

    step_s: float
    token_s: float
    load_block_s: float = 0.0
    """From host to device, in the background: the mover's to take, like the next one."""
    disk_block_s: float = 0.0
    """From disk to device."""


INSTANT = Durations(0.0, 0.0)


class UnreadableSlotError(Exception):
    """A slot that holds nothing was read."""


def full_group(block_size: int) -> CacheGroup:
    """A group whose layers read everything."""
    return CacheGroup(GroupKind.FULL, (0,), block_size * _BYTES_PER_RECORD, 0)


def sliding_group(block_size: int, window: int, layer: int = 1) -> CacheGroup:
    """A group whose layers read the last `window` tokens; at least 2, since a token's context reads the one before."""
    if window < 2:
        raise ValueError(f"the digest model's window is at least 2 tokens, not {window}")
    return CacheGroup(GroupKind.SLIDING, (layer,), block_size * _BYTES_PER_RECORD, window)


def full_and_sliding(block_size: int, windows: Iterable[int]) -> CacheGeometry:
    """A full group, and one for each window."""
    sliding = [sliding_group(block_size, window, layer) for layer, window in enumerate(windows, start=1)]
    return CacheGeometry((full_group(block_size), *sliding), block_size)


def digest_model(
    *,
    block_size: int = 16,
    window: int | None = None,
    geometry: CacheGeometry | None = None,
    vocab_size: int = 32_000,
    max_model_len: int = 8_192,
    eos_token_ids: tuple[int, ...] = (0,),
) -> ModelInfo:
    """The digest model: with a `geometry` of its own, or one of a full group and, with a `window`, a sliding one."""
    if geometry is None:
        geometry = full_and_sliding(block_size, () if window is None else (window,))
    windows = [group.window for group in geometry.groups]
    kv_format = KvFormat(
        weights_digest=b"token-digest",
        adapter_digest=NO_ADAPTER,
        attention=f"vocab_size={vocab_size} windows={windows}",
        model_dtype="uint64",
        kv_dtype="uint64",
        block_size=geometry.block_size,
        layout_version=LAYOUT_VERSION,
    )
    return ModelInfo("token-digest", kv_format, geometry, vocab_size, max_model_len, eos_token_ids, "")


class DigestRunner:
    """Implements `worker.runner.Runner`."""

    def __init__(
        self,
        info: ModelInfo,
        num_blocks: int,
        durations: Durations,
        sleep: Callable[[float], object],
        num_host_blocks: int = 0,
        make_mover: MakeMover | None = None,
        num_slots: tuple[int, ...] | None = None,
    ) -> None:
        """`sleep` is called once per step with its seconds, not with 0; `ManualClock.advance` fits.

        `make_mover` makes what moves blocks to `num_host_blocks` slots below and further; None: a device only.
        `num_slots` per group; None: one for every block.
        """
        self._info = info
        self._num_blocks = num_blocks
        self._durations = durations
        self._sleep = sleep
        self._num_slots = num_slots or (num_blocks,) * len(info.geometry.groups)
        shapes = [(num, info.geometry.block_size, RECORD_WIDTH) for num in self._num_slots]
        self._pools = tuple(np.full(shape, POISON, dtype=np.uint64) for shape in shapes)
        self.copier = self._make_copier(num_host_blocks)
        """Has the host pool; only to be looked at."""
        self._adapters: set[AdapterDigest] = set()
        self._mover = DeviceOnly() if make_mover is None else make_mover(self.copier)

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_slots(self) -> tuple[int, ...]:
        return self._num_slots

    @property
    def transfers(self) -> Transfers:
        return self._mover

    @property
    def pools(self) -> tuple[Records, ...]:
        """What stands in the slots of each group: [slot, token of the block, field]; only to be looked at."""
        return self._pools

    def prepare_adapter(self, content: AdapterContent) -> PreparedAdapter:
        """Any adapter fits a model without layers; its digest changes the tokens."""
        return PreparedAdapter(content.digest, None)

    def attach_adapter(self, adapter: PreparedAdapter) -> None:
        self._adapters.add(adapter.digest)

    def detach_adapter(self, adapter: AdapterDigest) -> None:
        self._adapters.discard(adapter)

    def run(self, plan: StepPlan) -> StepResult:
        try:
            return self._run(plan)
        except BaseException:
            self._mover.give_up(plan)
            raise

    def _make_copier(self, num_host_blocks: int) -> ArrayCopier:
        pools = [pool.view(np.uint8).reshape(len(pool), -1) for pool in self._pools]
        poison = np.full(self._info.geometry.bytes_per_block // 8, POISON, dtype=np.uint64).view(np.uint8)
        return ArrayCopier(pools, num_host_blocks, poison)

    def _run(self, plan: StepPlan) -> StepResult:
        check_plan(plan, self._info.geometry, self._num_slots, self._mover)
        self._mover.move(plan.moves)
        for scrub in plan.scrubs:
            self._pools[scrub.group][scrub.slot] = POISON
        self._mover.load(plan.loads)
        for copy in plan.copies:
            pool = self._pools[copy.group]
            pool[copy.target, : copy.num_tokens] = pool[copy.source, : copy.num_tokens]
        outcomes = tuple(self._run_row(row) for row in plan.rows)
        differences = tuple(map(self._difference, plan.compares))
        self._take_time(plan)
        return StepResult(outcomes, differences)

    def _difference(self, compare: SlotCompare) -> float:
        pool = self._pools[compare.group]
        return float(not np.array_equal(pool[compare.expected], pool[compare.computed]))

    def _run_row(self, row: Row) -> tuple[int, ...] | RowFailure:
        assert row.adapter == NO_ADAPTER or row.adapter in self._adapters, "a row names an adapter that is not attached"
        try:
            readable = tuple(
                self._write_and_read(pool, group, row, table)
                for pool, group, table in zip(self._pools, self._info.geometry.groups, row.block_tables, strict=True)
            )
            return tuple(next_token(readable, draw, self._info.vocab_size) for draw in row.draws)
        except UnreadableSlotError as error:
            return RowFailure(str(error))
        except NoTokenLeftError:
            return RowFailure("every token of the vocabulary is banned")

    def _write_and_read(self, pool: Records, group: CacheGroup, row: Row, table: tuple[int, ...]) -> Records:
        first = first_readable(group, row.start + 1)
        block_size = self._info.geometry.block_size
        first_block = first // block_size
        slots = np.array(table[first_block:], dtype=np.intp)
        assert slots.min() >= 0, "a slot is read that is absent"
        view = pool[slots].reshape(-1, RECORD_WIDTH)  # a copy: row of the view = position - first_block * block_size
        base = first_block * block_size
        before = view[first - base : row.start - base]
        _require_filled(before)
        context = before[-1, CONTEXT] if len(before) else first_context(row.adapter)
        new = make_records(np.array(row.token_ids, dtype=np.uint64), row.start, context)
        view[row.start - base : row.kv_length - base] = new
        changed = row.start // block_size - first_block
        pool[slots[changed:]] = view.reshape(-1, block_size, RECORD_WIDTH)[changed:]
        return view[first_readable(group, row.kv_length) - base : row.kv_length - base]

    def _take_time(self, plan: StepPlan) -> None:
        num_prefill = sum(len(row.token_ids) for row in plan.rows if not row.is_decode)
        seconds = self._durations.step_s + self._durations.token_s * num_prefill
        if seconds > 0:
            self._sleep(seconds)


def _require_filled(records: Records) -> None:
    if (records == POISON).any():
        raise UnreadableSlotError("a slot was read that holds nothing")
