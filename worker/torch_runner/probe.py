"""Finds out at load what a model's attention really is, and that the hook gives the model's own logits.

The configuration of many models does not tell which layers slide, or by which factor scores are scaled; the calls of
their attention do. So one short forward records them, and its logits are compared with the model's eager code.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cache_store.errors import InvalidRequestError
from worker.model_files.layers import LayerSpec
from worker.torch_runner.dense_attention import dense_attention
from worker.torch_runner.hook import HOOK_NAME, LayerAttention, attention_context

_LENGTHS = (11, 6)
"""Two sequences in one flattened batch: a model that ignores position_ids or mixes neighbours gives other logits."""
_TOLERANCE = 1e-3
"""Of the largest logit, in fp32; half precision is compared hundred times more loosely."""


class RecordingAttention:
    """Dense causal attention of independent sequences that notes how each layer calls it."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self._lengths = lengths
        self.calls: dict[int, list[LayerSpec]] = {}

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
        if key.shape != value.shape or key.shape[1] != sum(self._lengths) or query.shape[2] != key.shape[2]:
            raise NotImplementedError("queries, keys and values differ in width or number")
        num_sinks = 0 if sinks is None else sinks.shape[0]
        spec = LayerSpec(
            query.shape[0], key.shape[0], key.shape[2], value.shape[2], scaling, window, softcap, num_sinks
        )
        self.calls.setdefault(layer, []).append(spec)
        parts = zip(*(torch.split(tensor, list(self._lengths), dim=1) for tensor in (query, key, value)), strict=True)
        return torch.cat([dense_attention(q, k, v, scaling, window, softcap, sinks) for q, k, v in parts])


@torch.inference_mode()
def probe_layers(model: PreTrainedModel, vocab_size: int) -> tuple[LayerSpec, ...]:
    """The layers' attention. Leaves the model set to the hook. Raises InvalidRequestError where it cannot be served."""
    tokens, positions = _batch(model, vocab_size)
    eager = _eager_logits(model, tokens)
    attention = RecordingAttention(_LENGTHS)
    name = model.config.model_type
    try:
        with attention_context(attention):
            hooked = model(input_ids=tokens, position_ids=positions, attention_mask=None, use_cache=False).logits[0]
    except NotImplementedError as error:
        raise InvalidRequestError("model", f"models of type {name!r} are not served: {error}") from error
    layers = _checked_layers(attention, model.config.num_hidden_layers, name)
    _compare(hooked, eager, name)
    return layers


Compute = Callable[[LayerAttention, Tensor, Tensor], Tensor]
"""Attention, token ids [tokens], positions [tokens]; gives the logits [tokens, vocabulary]."""


@torch.inference_mode()
def probe_forward(model: PreTrainedModel, vocab_size: int, compute: Compute) -> None:
    """Compares another way to compute the model with its own code. Raises InvalidRequestError where they differ."""
    tokens, positions = _batch(model, vocab_size)
    logits = compute(RecordingAttention(_LENGTHS), tokens[0], positions[0])
    _compare(logits, _eager_logits(model, tokens), model.config.model_type)


def _batch(model: PreTrainedModel, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Token ids and positions [1, tokens] of the sequences."""
    generator = torch.Generator().manual_seed(20)
    tokens = torch.randint(vocab_size, (1, sum(_LENGTHS)), generator=generator).to(model.device)
    positions = torch.cat([torch.arange(length) for length in _LENGTHS]).unsqueeze(0).to(model.device)
    return tokens, positions


def _eager_logits(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Of each sequence alone, by the model's own code. Leaves the model set to the hook."""
    model.set_attn_implementation("eager")
    try:
        parts = torch.split(tokens, list(_LENGTHS), dim=1)
        return torch.cat([model(input_ids=part, use_cache=False).logits[0] for part in parts])
    finally:
        model.set_attn_implementation(HOOK_NAME)


def _checked_layers(attention: RecordingAttention, num_layers: int, name: str) -> tuple[LayerSpec, ...]:
    if sorted(attention.calls) != list(range(num_layers)) or any(len(calls) != 1 for calls in attention.calls.values()):
        raise InvalidRequestError(
            "model",
            f"models of type {name!r} are not served: {len(attention.calls)} of {num_layers} layers reach the "
            "attention hook exactly once; the others keep state that the cache does not hold",
        )
    return tuple(attention.calls[index][0] for index in range(num_layers))


def _compare(hooked: Tensor, eager: Tensor, name: str) -> None:
    scale = max(1.0, float(eager.abs().max()))
    tolerance = _TOLERANCE * scale * (1 if hooked.dtype == torch.float32 else 100)
    difference = float((hooked - eager).abs().max())
    if not difference <= tolerance:  # also true for NaN
        raise InvalidRequestError(
            "model",
            f"the {name!r} model gives other logits through the cache's attention than by its own code: they differ by "
            f"{difference:.2e} where {tolerance:.2e} is allowed; are weights missing, or not finite?",
        )
