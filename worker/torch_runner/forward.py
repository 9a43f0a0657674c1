"""One forward over a flattened batch, shared by the runners: our kernels or model code, logits of drawing rows."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from worker.step_plan import StepPlan
from worker.torch_runner.adapters import StepAdapters
from worker.torch_runner.hook import LayerAttention, attention_context
from worker.torch_runner.latent_cache import cache_arguments
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.step_batch import Ints


class LogitsObserver(Protocol):
    """Sees the logits of every step; for comparisons between runners."""

    def __call__(self, plan: StepPlan, logits: Tensor) -> None:
        """`logits` [rows that draw, vocabulary], in the order of the rows; valid until the call returns."""
        ...


def forward(
    model: LoadedModel,
    attention: LayerAttention,
    token_ids: Ints,
    positions: Ints,
    drawing_tokens: Ints,
    adapters: StepAdapters | None = None,
) -> Tensor:
    """Logits [drawing rows, vocabulary] in float32 of the batch's tokens `drawing_tokens`, valid until the next call.

    Adapters change what modules compute, so a step with some goes through the modules.
    """
    if model.fused is not None and adapters is None:
        return model.fused(attention, token_ids, positions, drawing_tokens)
    with attention_context(attention), nullcontext() if adapters is None else adapters.applied():
        output = model.module(
            input_ids=_on(model.device, token_ids).unsqueeze(0),
            position_ids=_on(model.device, positions).unsqueeze(0),
            attention_mask=None,
            use_cache=False,
            **cache_arguments(attention),
            logits_to_keep=_on(model.device, drawing_tokens),
        )
    logits: Tensor = output.logits[0]
    return logits.float()


def _on(device: torch.device, values: Ints) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
