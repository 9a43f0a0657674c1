"""The contiguous runner: each sequence has its own pre-allocated keys and values and a position pointer.

The simplest cache there is: [batch, kv_heads, max_len, head_dim] per layer, nothing shared, nothing moved. It ignores
block tables, and is the oracle of the tests and the baseline of the memory bench. Owned and called by one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from cache_store.adapter_files import AdapterContent
from cache_store.domain import AdapterDigest
from cache_store.errors import PreconditionError
from cache_store.transfers import NoTransfers, Transfers
from worker.runner import ModelInfo, PreparedAdapter
from worker.step_plan import Row, SequenceId, StepPlan, StepResult
from worker.torch_runner.adapters import AdapterSet
from worker.torch_runner.dense_attention import dense_attention
from worker.torch_runner.forward import LogitsObserver, forward
from worker.torch_runner.hook import LayerAttention
from worker.torch_runner.latent_attention import LatentCall, LatentRow, attend_to_latents
from worker.torch_runner.latent_projection import LatentProjection
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.sampler import draw_rows


class ContiguousRunner:
    """A Runner for `max_batch` sequences of up to `max_len` tokens."""

    def __init__(
        self,
        model: LoadedModel,
        max_batch: int,
        max_len: int,
        block_size: int = 16,
        fill: float = 0.0,
        num_threads: int = 1,
        observer: LogitsObserver | None = None,
    ) -> None:
        """`block_size` only tells an engine how to count; `fill` is what unwritten places hold."""
        torch.set_num_threads(num_threads)
        self._model = model
        self._info = model.info(block_size)
        self._adapters = AdapterSet(model.module)
        self._observer = observer
        self._num_blocks = max_batch * -(-max_len // block_size)
        shapes = {layer: shape for shape in model.groups for layer in shape.layers}
        self.keys, self.values = (
            [
                torch.full((max_batch, heads, max_len, width), fill, dtype=model.torch_dtype, device=model.device)
                for heads, width in sizes
            ]
            for sizes in zip(
                *(
                    ((shape.num_kv_heads, shape.key_dim), (shape.num_kv_heads, shape.value_dim))
                    for _, shape in sorted(shapes.items())
                ),
                strict=True,
            )
        )
        """Per layer; latents in place of keys, and no values, where latents are cached."""
        self._max_len = max_len
        self._free = list(range(max_batch))
        self._places: dict[SequenceId, int] = {}
        self._pointers = [0] * max_batch

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_slots(self) -> tuple[int, ...]:
        return (self._num_blocks,) * len(self._model.groups)

    @property
    def transfers(self) -> Transfers:
        return NoTransfers()

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors' storage: 2 × layers × kv_heads × head_dim × max_len × batch × element size."""
        return sum(tensor.untyped_storage().nbytes() for tensor in (*self.keys, *self.values))

    def prepare_adapter(self, content: AdapterContent) -> PreparedAdapter:
        return self._adapters.prepare(content)

    def attach_adapter(self, adapter: PreparedAdapter) -> None:
        self._adapters.attach(adapter)

    def detach_adapter(self, adapter: AdapterDigest) -> None:
        self._adapters.detach(adapter)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        for sequence in plan.ended:
            self._end(sequence)
        if not plan.rows:
            return StepResult(())
        places = [self._place(row) for row in plan.rows]
        step = self._begin(plan.rows, places)
        tokens = np.concatenate([np.array(row.token_ids, dtype=np.int64) for row in plan.rows])
        positions = np.concatenate([np.arange(row.start, row.kv_length) for row in plan.rows])
        last = np.cumsum([len(row.token_ids) for row in plan.rows]) - 1
        drawing = last[[bool(row.draws) for row in plan.rows]]
        logits = forward(self._model, step, tokens, positions, drawing, self._adapters.of_step(plan.rows))
        for row, place in zip(plan.rows, places, strict=True):
            self._pointers[place] = row.kv_length
        if self._observer is not None:
            self._observer(plan, logits)
        return StepResult(draw_rows(plan.rows, logits))

    def _begin(self, rows: tuple[Row, ...], places: list[int]) -> LayerAttention:
        if self._model.latents:
            return _LatentStep(self._model.latents, self.keys, rows, places)
        return _ContiguousStep(self.keys, self.values, rows, places)

    def _place(self, row: Row) -> int:
        """The row's place in the batch; a new sequence takes a free one."""
        if row.sequence not in self._places:
            if not self._free:
                raise PreconditionError(f"all {len(self._places)} places are taken; end a sequence first")
            place = self._places[row.sequence] = self._free.pop()
            self._pointers[place] = 0
        place = self._places[row.sequence]
        if row.start != self._pointers[place]:
            raise PreconditionError(
                f"a contiguous cache goes on at its pointer {self._pointers[place]}, not at {row.start}: "
                "it reuses no prefix"
            )
        if row.kv_length > self._max_len:
            raise PreconditionError(f"{row.kv_length} tokens do not fit into {self._max_len}")
        return place

    def _end(self, sequence: SequenceId) -> None:
        if sequence in self._places:
            self._free.append(self._places.pop(sequence))


class _ContiguousStep:
    """Attention of one step."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], rows: tuple[Row, ...], places: list[int]) -> None:
        self._keys = keys
        self._values = values
        self._rows = tuple(zip(rows, places, strict=True))

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int,
        softcap: float,
        sinks: Tensor | None,
    ) -> Tensor:
        outputs = []
        low = 0
        for row, place in self._rows:
            high = low + len(row.token_ids)
            keys, values = self._keys[layer][place], self._values[layer][place]
            keys[:, row.start : row.kv_length] = key[:, low:high]
            values[:, row.start : row.kv_length] = value[:, low:high]
            seen_keys, seen_values = keys[:, : row.kv_length], values[:, : row.kv_length]
            outputs.append(dense_attention(query[:, low:high], seen_keys, seen_values, scaling, window, softcap, sinks))
            low = high
        return torch.cat(outputs)


class _LatentStep:
    """Attention of one step over latents."""

    def __init__(
        self,
        projections: Mapping[int, LatentProjection],
        latents: list[Tensor],
        rows: tuple[Row, ...],
        places: list[int],
    ) -> None:
        ends = accumulate(len(row.token_ids) for row in rows)
        self._projections = projections
        self._latents = latents
        self._places = places
        self._rows = [
            LatentRow(end - len(row.token_ids), end, row.kv_length) for row, end in zip(rows, ends, strict=True)
        ]

    def store_latents(self, layer: int, latents: Tensor) -> None:
        for row, place in zip(self._rows, self._places, strict=True):
            self._latents[layer][place, 0, row.length - row.num_new : row.length] = latents[row.low : row.high]

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int,
        softcap: float,
        sinks: Tensor | None,
    ) -> Tensor:
        def latents_of(row: int) -> Tensor:
            return self._latents[layer][self._places[row], 0, : self._rows[row].length]

        call = LatentCall(self._projections[layer], query, key, value, scaling, window, softcap, sinks)
        return attend_to_latents(call, self._rows, latents_of)
