"""A model whose logits have the same bits in any batch, however its prompt is cut and whatever of it was cached.

Linear layers and attention add in an order that depends on positions only. What else a model does (experts chosen by
sorting, norms of its own) is not known from outside, so it is tried: a model that gives other bits in another batch is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import structlog
import torch
from torch import Tensor

from cache_store.errors import PreconditionError
from worker.model_files.digests import default_cache_dir
from worker.step_plan import Draw, Row, SequenceId, StepPlan
from worker.torch_runner.attention_backend import AttentionBackend, Order
from worker.torch_runner.compiler import find_compiler
from worker.torch_runner.fixed_linear import fix_linears
from worker.torch_runner.kernel_build import KernelBuildError
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.native_attention import NativeAttention
from worker.torch_runner.paged import PagedRunner
from worker.torch_runner.triton_choice import triton_attention

_log = structlog.get_logger(__name__)
_BLOCK_SIZE = 16
_NUM_PROMPT, _NUM_STEPS = 37, 3
_OTHERS = (21, 70, *(3,) * 15)
"""Prompts of the sequences beside the one that is watched: as many rows that every kernel takes another way."""
_GREEDY = Draw(sample_index=0, position=0, temperature=0.0, top_p=1.0, top_k=0, seed=0, banned=())


def deterministic_attention(
    model: LoadedModel, num_threads: int = 1, cache_dir: Path | None = None
) -> AttentionBackend:
    """The attention in fixed order for `model`, whose linear layers are replaced, and which is then tried.

    Raises PreconditionError where there are no kernels for it, or it gives other bits in another batch.
    """
    folder = cache_dir or default_cache_dir()
    attention = _attention(model, num_threads, folder)
    fix_linears(model.module, folder, num_threads)
    check_batches(model, attention, num_threads)
    return attention


def torch_threads(model: LoadedModel, num_threads: int) -> int:
    """With how many threads torch itself may compute `model` in fixed order, where our kernels have `num_threads`.

    Its element-wise operations compute the last elements of each thread's share by other instructions, and where shares
    end depends on the batch.
    """
    return num_threads if model.fused is not None else 1


def _attention(model: LoadedModel, num_threads: int, cache_dir: Path) -> AttentionBackend:
    if model.latents:
        raise PreconditionError("attention over cached latents has no fixed order; start without --deterministic")
    if model.device.type == "cuda":
        return triton_attention(model, Order.FIXED)
    compiler = find_compiler()
    if compiler is None:
        raise PreconditionError("attention in fixed order needs a C++ compiler: install g++ or clang++")
    try:
        attention = NativeAttention(compiler, cache_dir, num_threads, Order.FIXED)
    except KernelBuildError as error:
        raise PreconditionError(f"attention in fixed order needs our kernel: {error}") from error
    if not (all(attention.supports(layer) for layer in model.layers) and attention.stores(model.kv_dtype)):
        raise PreconditionError(
            "the attention kernel does not compute heads of this width, and nothing else has a fixed order; start "
            "without --deterministic"
        )
    return attention


def check_batches(model: LoadedModel, attention: AttentionBackend, num_threads: int) -> None:
    """Computes one sequence alone, in parts, and beside others. Raises PreconditionError where bits differ."""
    alone = _Trial(model, attention, num_threads).watch([_NUM_PROMPT], ())
    in_parts = _Trial(model, attention, num_threads).watch([16, 4, 16, 1], ())
    beside = _Trial(model, attention, num_threads).watch([30, 7], _OTHERS)
    if not (torch.equal(alone, in_parts) and torch.equal(alone, beside)):  # not equal where there is NaN, too
        raise PreconditionError(
            f"models of type {model.module.config.model_type!r} give other bits when their prompt is cut or other "
            "requests run beside them, also with our kernels; start without --deterministic"
        )
    _log.info("deterministic_checked", model_type=model.module.config.model_type, attention=attention.name)


class _Trial:
    """A runner of its own for a few short sequences."""

    def __init__(self, model: LoadedModel, attention: AttentionBackend, num_threads: int) -> None:
        self._vocab_size = model.vocab_size
        self._blocks = -(-(max(*_OTHERS, _NUM_PROMPT) + _NUM_STEPS) // _BLOCK_SIZE)
        self._num_groups = len(model.groups)
        self._seen: dict[SequenceId, Tensor] = {}
        num_blocks = self._blocks * (1 + len(_OTHERS))
        threads = torch_threads(model, num_threads)
        self._runner = PagedRunner(
            model, num_blocks, attention, _BLOCK_SIZE, float("nan"), threads, observer=self._observe
        )

    def watch(self, parts: Sequence[int], others: Sequence[int]) -> Tensor:
        """Logits [steps, vocabulary] of the watched sequence: its prompt in parts, then tokens one by one."""
        start, seen = 0, []
        computed = [0] * len(others)
        for count in (*parts, *(1,) * _NUM_STEPS):
            watched = self._row(0, start, count)
            beside = []
            for index, length in enumerate(others):
                more = min(17, length - computed[index]) or 1
                beside.append(self._row(1 + index, computed[index], more))
                computed[index] += more
            # rows with one new token and history come first
            rows = sorted((watched, *beside), key=lambda row: not row.is_decode)
            self._runner.run(StepPlan(tuple(rows), (), (), ()))
            seen.append(self._seen[watched.sequence])
            start += count
        return torch.stack(seen[len(parts) - 1 :])

    def _observe(self, plan: StepPlan, logits: Tensor) -> None:
        drawing = [row.sequence for row in plan.rows if row.draws]
        self._seen = dict(zip(drawing, logits.clone(), strict=True))

    def _row(self, number: int, start: int, count: int) -> Row:
        tokens = tuple((17 * at + 31 * number + 5) % self._vocab_size for at in range(start, start + count))
        first = number * self._blocks
        table = tuple(range(first, first + -(-(start + count) // _BLOCK_SIZE)))
        return Row(SequenceId(number), tokens, start, (table,) * self._num_groups, (_GREEDY,))
