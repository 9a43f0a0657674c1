"""The paged runner: keys and values in pools of blocks, addressed by the step plan's block tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from cache_store.adapter_files import AdapterContent
from cache_store.domain import AdapterDigest
from cache_store.transfers import Transfers
from worker.mover import DeviceOnly, MakeMover
from worker.runner import ModelInfo, PreparedAdapter
from worker.step_plan import SlotCopy, SlotRef, StepPlan, StepResult
from worker.torch_runner.adapters import AdapterSet, StepAdapters
from worker.torch_runner.attention_backend import AttentionBackend
from worker.torch_runner.copiers import make_copier
from worker.torch_runner.forward import LogitsObserver, forward
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.pool_compare import slot_differences
from worker.torch_runner.pools import KvPools
from worker.torch_runner.sampler import draw_rows
from worker.torch_runner.step_batch import StepBatch, build_batch


class StepGraphs(Protocol):
    """Recorded forwards."""

    def forward(self, batch: StepBatch) -> Tensor | None:
        """Logits of the drawing rows, valid until the next call; None for a step that was not recorded."""
        ...


class BlockWrites(Protocol):
    """Copies and scrubs of a step, before its forward."""

    def scrub(self, scrubs: Sequence[SlotRef]) -> None:
        """Overwrites whole slots."""
        ...

    def copy(self, copies: Sequence[SlotCopy]) -> None:
        """Copies the first tokens of slots."""
        ...


MakeBlocks = Callable[[KvPools], BlockWrites]
MakeGraphs = Callable[[LoadedModel, KvPools], StepGraphs]


class PagedRunner:
    """A Runner. Owns its pools; called by one thread.

    `num_threads` is set for the whole process. Start it with OMP_WAIT_POLICY=PASSIVE where more threads than cores may
    run: waiting threads spin otherwise, and two workers slow each other down many times over.
    """

    def __init__(
        self,
        model: LoadedModel,
        num_blocks: int,
        attention: AttentionBackend,
        block_size: int = 16,
        fill: float = 0.0,
        num_threads: int = 1,
        observer: LogitsObserver | None = None,
        num_host_blocks: int = 0,
        make_mover: MakeMover | None = None,
        make_graphs: MakeGraphs | None = None,
        num_slots: tuple[int, ...] | None = None,
        make_blocks: MakeBlocks | None = None,
        tolerance: float | None = None,
    ) -> None:
        """`fill` is what unwritten and scrubbed slots hold: NaN in tests, so that a read of one shows.

        `make_mover` makes what moves blocks to `num_host_blocks` slots below and further; None: a device only.
        `make_graphs` records steps of decoding rows over the pools; None: every step is launched as it comes.
        `make_blocks` makes what copies and scrubs blocks of the pools; None: they do it themselves.
        `num_slots` per group, as `cache_store/pool_sizes.py` says; None: one for every block.
        `tolerance` by which keys and values that are computed again may differ; None: as their type rounds.
        """
        torch.set_num_threads(num_threads)
        self._model = model
        info = model.info(block_size)
        self._info = info if tolerance is None else replace(info, tolerance=tolerance)
        self._adapters = AdapterSet(model.module)
        self._attention = attention
        self._observer = observer
        self._num_slots = num_slots or (num_blocks,) * len(model.groups)
        self.pools = KvPools(model.groups, self._num_slots, block_size, model.kv_dtype, model.device, fill)
        self._blocks = self.pools if make_blocks is None else make_blocks(self.pools)
        self._num_blocks = num_blocks
        self.copier = make_copier(self.pools, num_host_blocks)
        """Has the host pool; only to be looked at."""
        self._mover = DeviceOnly() if make_mover is None else make_mover(self.copier)
        with torch.inference_mode(), on_device(model.device):
            self.graphs = None if make_graphs is None else make_graphs(model, self.pools)
            """Only to be looked at."""

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

    def prepare_adapter(self, content: AdapterContent) -> PreparedAdapter:
        return self._adapters.prepare(content)

    def attach_adapter(self, adapter: PreparedAdapter) -> None:
        self._adapters.attach(adapter)

    def detach_adapter(self, adapter: AdapterDigest) -> None:
        self._adapters.detach(adapter)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        try:
            with on_device(self._model.device):
                return self._run(plan)
        except BaseException:
            self._mover.give_up(plan)
            raise

    def _run(self, plan: StepPlan) -> StepResult:
        self._mover.move(plan.moves)
        self._blocks.scrub(plan.scrubs)
        self._mover.load(plan.loads)
        self._blocks.copy(plan.copies)
        if not plan.rows:
            return StepResult(())
        batch = build_batch(plan, self.pools.block_size, len(self.pools.groups))
        logits = self._forward(batch, self._adapters.of_step(plan.rows))
        if self._observer is not None:
            self._observer(plan, logits)
        began_s = time.perf_counter()
        outcomes = draw_rows(plan.rows, logits)
        draw_s = time.perf_counter() - began_s
        return StepResult(outcomes, slot_differences(self.pools, plan.compares), draw_s)

    def _forward(self, batch: StepBatch, adapters: StepAdapters | None) -> Tensor:
        """Logits [drawing rows, vocabulary], valid until the next step."""
        if self.graphs is not None and adapters is None:
            logits = self.graphs.forward(batch)
            if logits is not None:
                return logits
        attention = self._attention.begin(self.pools, batch)
        return forward(self._model, attention, batch.token_ids, batch.positions, batch.drawing_tokens, adapters)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes a GPU the one that launches of this thread go to."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
