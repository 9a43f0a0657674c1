"""Finds out at load what a model's attention really is, and that the hook gives the model's own logits.

The configuration of many models does not tell which layers slide, or by which factor scores are scaled; the calls of
their attention do. So two short forwards record them, the second of which goes on where the first ended, and their
logits are compared with the model's eager code: a model that keeps anything but keys and values gives other ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from cache_store.errors import InvalidRequestError
from worker.model_files.layers import LayerSpec
from worker.torch_runner.hook import HOOK_NAME, LayerAttention, attention_context
from worker.torch_runner.latent_cache import cache_arguments
from worker.torch_runner.latent_projection import LatentProjection, latent_projections
from worker.torch_runner.mask_probe import cache_windows, mask_windows
from worker.torch_runner.recording import RecordingAttention, RecordingLatents

_STEPS = ((7, 2), (4, 5))
"""Tokens of two sequences in each of two flattened batches: a model that ignores position_ids, mixes neighbours or
keeps a state gives other logits."""
_LONGEST = max(sum(counts) for counts in zip(*_STEPS, strict=True))
_FARTHEST = 1 << 17
"""Positions that are looked at; tables of angles grow up to them."""
_TOLERANCE = 1e-3
"""Of the largest logit, in fp32; half precision is compared hundred times more loosely."""
_FAULTS = (NotImplementedError, RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError)
"""What model code raises that was written for another attention, or for another configuration."""


@torch.inference_mode()
def probe_model(
    model: PreTrainedModel, vocab_size: int
) -> tuple[tuple[LayerSpec, ...], Mapping[int, LatentProjection]]:
    """The layers' attention, and of latents what they are expanded by.

    Leaves the model set to the hook. Raises InvalidRequestError where it cannot be served.
    """
    name = model.config.model_type
    recorder = RecordingAttention()
    try:
        latents = latent_projections(model)
        recording = RecordingLatents(latents, recorder) if latents else recorder
        sequences = _sequences(model, vocab_size)
        eager = _eager_logits(model, sequences)
        hooked = _in_steps(sequences, recording, lambda *arguments: _hooked_logits(model, *arguments))
        layers = _checked_layers(recorder, model.config.num_hidden_layers)
        _check_windows(model, layers, recording)
    except _FAULTS as error:
        raise InvalidRequestError("model", f"models of type {name!r} are not served: {_reason(error)}") from error
    _compare(hooked, eager, name)
    return layers, latents


Compute = Callable[[LayerAttention, Tensor, Tensor], Tensor]
"""Attention, token ids [tokens], positions [tokens]; gives logits [tokens, vocabulary], valid until its next call."""


@torch.inference_mode()
def probe_forward(model: PreTrainedModel, vocab_size: int, compute: Compute) -> None:
    """Compares another way to compute the model with its own code, at its first positions and far beyond.

    Raises InvalidRequestError where they differ.
    """
    sequences = _sequences(model, vocab_size)
    for first in (0, *_far_positions(model.config)):
        logits = _in_steps(sequences, RecordingAttention(), compute, first)
        _compare(logits, _eager_logits(model, sequences, first), model.config.model_type)


def _far_positions(config: PretrainedConfig) -> list[int]:
    """Where sequences begin that go past the length of the first training, and that end near the longest context."""
    rope = getattr(config, "rope_parameters", None)
    first = rope.get("original_max_position_embeddings") if isinstance(rope, dict) else None
    longest = min(_FARTHEST, int(getattr(config, "max_position_embeddings", None) or _FARTHEST))
    starts = {longest - _LONGEST, min(int(first or longest) - _LONGEST // 2, longest - _LONGEST)}
    return sorted(start for start in starts if start > 0)


def _sequences(model: PreTrainedModel, vocab_size: int) -> list[Tensor]:
    """Token ids [tokens] of each."""
    generator = torch.Generator().manual_seed(20)
    lengths = [sum(counts) for counts in zip(*_STEPS, strict=True)]
    return [torch.randint(vocab_size, (length,), generator=generator).to(model.device) for length in lengths]


def _eager_logits(model: PreTrainedModel, sequences: Sequence[Tensor], first: int = 0) -> Tensor:
    """Of each sequence alone from position `first` on, by the model's own code. Leaves the model set to the hook."""
    model.set_attn_implementation("eager")
    try:
        logits = []
        for tokens in sequences:
            positions = torch.arange(first, first + tokens.shape[0], device=tokens.device).unsqueeze(0)
            more = {"position_ids": positions} if first else {}
            logits.append(model(input_ids=tokens.unsqueeze(0), use_cache=False, **more).logits[0])
        return torch.cat(logits)
    finally:
        model.set_attn_implementation(HOOK_NAME)


def _in_steps(
    sequences: Sequence[Tensor],
    recording: RecordingAttention | RecordingLatents,
    compute: Compute,
    first: int = 0,
) -> Tensor:
    """Of each sequence from position `first` on, computed with the others step by step."""
    found: list[list[Tensor]] = [[] for _ in sequences]
    starts = [0] * len(sequences)
    for counts in _STEPS:
        recording.begin(counts)
        stops = [start + count for start, count in zip(starts, counts, strict=True)]
        spans = list(zip(starts, stops, strict=True))
        tokens = torch.cat([part[start:stop] for part, (start, stop) in zip(sequences, spans, strict=True)])
        positions = torch.cat([torch.arange(*span, device=tokens.device) + first for span in spans])
        logits = compute(recording, tokens, positions).clone()
        for kept, part in zip(found, torch.split(logits, list(counts)), strict=True):
            kept.append(part)
        starts = stops
    return torch.cat([part for kept in found for part in kept])


def _hooked_logits(model: PreTrainedModel, attention: LayerAttention, tokens: Tensor, positions: Tensor) -> Tensor:
    with attention_context(attention):
        output = model(
            input_ids=tokens.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            attention_mask=None,
            use_cache=False,
            **cache_arguments(attention),
        )
    logits: Tensor = output.logits[0]
    return logits


def _reason(error: Exception) -> str:
    if isinstance(error, NotImplementedError):
        return str(error)
    return f"their code does not run with the cache's attention ({type(error).__name__}: {error})"


def _check_windows(
    model: PreTrainedModel, layers: tuple[LayerSpec, ...], recording: RecordingAttention | RecordingLatents
) -> None:
    """Mask, attention and transformers' own cache have to agree on how far each layer reads."""
    recording.begin((1,))
    token = torch.zeros(1, dtype=torch.int64, device=model.device)
    by_mask = mask_windows(model, lambda: _hooked_logits(model, recording, token, token))
    by_cache = cache_windows(model)
    for index, layer in enumerate(layers):
        told = (layer.window, by_mask[index], by_cache.get(index, layer.window))
        if len(set(told)) > 1:
            raise NotImplementedError(
                f"layer {index} reads {_window(told[0])} by its attention, {_window(told[1])} by its mask and "
                f"{_window(told[2])} by transformers' cache"
            )


def _window(window: int) -> str:
    return f"{window} tokens" if window else "all tokens"


def _checked_layers(recorder: RecordingAttention, num_layers: int) -> tuple[LayerSpec, ...]:
    first = recorder.calls[0]
    missing = sorted(set(range(num_layers)) - set(first))
    repeated = sorted(layer for layer, calls in first.items() if len(calls) != 1)
    if missing:
        reason = f"{len(missing)} of {num_layers} layers never reach the attention hook: they keep another state"
    elif repeated:
        reason = f"layer {repeated[0]} attends {len(first[repeated[0]])} times, with keys and values of its own each"
    elif len(first) != num_layers:
        reason = f"{len(first)} layers reach the attention hook where its configuration tells {num_layers}"
    elif recorder.calls[1] != first:
        reason = "its layers attend otherwise in a later step"
    elif len({calls[0].latent_dim == 0 for calls in first.values()}) > 1:
        reason = "only some of its layers cache latents"
    else:
        return tuple(first[index][0] for index in range(num_layers))
    raise NotImplementedError(reason)


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
