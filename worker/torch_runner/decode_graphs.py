"""Steps of decoding rows as recorded forwards: one per size of batch, replayed with new numbers in the same buffers.

A model's forward is hundreds of launches, which take longer to give than to carry out when few tokens are computed.
Batches are padded to the next recorded size; whatever does not fit (prompts, adapters, very many blocks) runs as ever.
Everything but the recording itself is the same on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog
import torch
from torch import Tensor

from worker.torch_runner.hook import attention_context
from worker.torch_runner.latent_cache import cache_arguments
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.pools import KvPools
from worker.torch_runner.static_step import StaticStep, StepRoom
from worker.torch_runner.step_batch import StepBatch
from worker.torch_runner.triton_attention import TritonAttention
from worker.torch_runner.work_items import Work

_log = structlog.get_logger(__name__)

PROGRAMS_PER_PROCESSOR = 4
"""Programs that a recorded launch starts per multiprocessor and layer, however much work there is."""


class Recorder(Protocol):
    """Records work on a device."""

    @property
    def num_processors(self) -> int:
        """Multiprocessors of the device."""
        ...

    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """How to do `work` again, and where its result lies then. Raises RuntimeError where it cannot be recorded."""
        ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """One size of batch."""

    num_rows: int
    replay: Callable[[], None]
    logits: Tensor
    """[num_rows, vocabulary]; of the last replay."""


def buckets(max_rows: int) -> tuple[int, ...]:
    """Sizes of batches that are recorded: powers of two, the last one at least `max_rows`."""
    sizes = [1]
    while sizes[-1] < max_rows:
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


def step_room(pools: KvPools, attention: TritonAttention, max_rows: int, max_len: int) -> StepRoom:
    """Room for `max_rows` rows of `max_len` tokens, or for twice what the pools hold where that is less."""
    slots = max(group.bytes.shape[0] for group in pools.groups)
    split = min(tiling.split for tiling in attention.tilings)
    blocks = min(max_rows * -(-max_len // pools.block_size), max_rows + 2 * slots)
    items = min(max_rows * -(-max_len // split), 2 * max_rows + 2 * slots * pools.block_size // split)
    return StepRoom(max_rows, blocks, items)


class DecodeGraphs:
    """The recorded forwards of one model over its pools. Belongs to the runner's thread."""

    def __init__(
        self, model: LoadedModel, pools: KvPools, attention: TritonAttention, recorder: Recorder, max_rows: int
    ) -> None:
        """Records at once: seconds. Without any recording, with the reason in the log, where the model refuses."""
        self._model = model
        self._pools = pools
        self._attention = attention
        sizes = buckets(max_rows)
        room = step_room(pools, attention, sizes[-1], model.max_model_len)
        programs = tuple(
            max(1, PROGRAMS_PER_PROCESSOR * recorder.num_processors // group.shape.num_kv_heads)
            for group in pools.groups
        )
        self._step = StaticStep(len(pools.groups), room, programs, pools.device)
        self._recorded: list[Recorded] = []
        self._step.clear()
        try:
            # The largest first: smaller ones live in its memory.
            self._recorded = sorted(
                (self._record(recorder, size) for size in reversed(sizes)), key=lambda each: each.num_rows
            )
        except RuntimeError as error:
            _log.warning("decoding_not_recorded", reason=str(error).splitlines()[0], effect="slower decoding")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batches that are recorded."""
        return tuple(recorded.num_rows for recorded in self._recorded)

    def replay(self, num_rows: int) -> Tensor:
        """The last step once more, as one of up to `num_rows` rows; for measuring."""
        fitting = next(each for each in self._recorded if each.num_rows >= num_rows)
        fitting.replay()
        return fitting.logits

    def forward(self, batch: StepBatch) -> Tensor | None:
        """Logits [drawing rows, vocabulary] in float32, valid until the next call; None where the step does not fit."""
        num_rows = len(batch.lengths)
        fitting = next((each for each in self._recorded if each.num_rows >= num_rows), None)
        if fitting is None or batch.num_decode_rows != num_rows:
            return None
        works = self._works(batch)
        if not self._step.fits(batch, works):
            return None
        self._step.fill(batch, works)
        fitting.replay()
        if len(batch.drawing_tokens) == num_rows:
            return fitting.logits[:num_rows]
        return fitting.logits[torch.from_numpy(batch.drawing_tokens).to(self._pools.device)]

    def _works(self, batch: StepBatch) -> list[Work]:
        pairs = self._attention.make_works(self._pools, batch)
        return [decode for decode, _ in pairs if decode is not None]

    def _record(self, recorder: Recorder, num_rows: int) -> Recorded:
        token_ids, positions = self._step.tokens(num_rows)
        step = self._attention.step(self._pools, self._step.work(num_rows))

        def work() -> Tensor:
            with attention_context(step):
                output = self._model.module(
                    input_ids=token_ids.unsqueeze(0),
                    position_ids=positions.unsqueeze(0),
                    attention_mask=None,
                    use_cache=False,
                    **cache_arguments(step),
                )
            logits: Tensor = output.logits[0]
            return logits.float()

        return Recorded(num_rows, *recorder.record(work))
