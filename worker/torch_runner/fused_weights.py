"""Whether a model is built like llama, seen from its modules, and its weights as the fused forward reads them.

Queries, keys and values of a layer become one matrix, and so do gate and up: the modules' parameters are then views of
it, so that nothing is kept twice and the modules go on computing the same. What no structure tells (a factor on the
residual, interleaved rotation) is found by the comparison of logits in `worker/torch_runner/fused_forward.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from cache_store.errors import StemcacheError
from worker.model_files.layers import LayerSpec
from worker.torch_runner.huge_pages import HugePages

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_SPLIT_HEADS, _FUSED_HEADS = ("q_proj", "k_proj", "v_proj"), ("qkv_proj",)
_SPLIT_GATE, _FUSED_GATE = ("gate_proj", "up_proj"), ("gate_up_proj",)
_HEAD_NORMS = {"q_norm", "k_norm"}
_FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Types of RoPE whose angles depend on the position alone."""


class UnfitError(StemcacheError):
    """The model is not one that the fused forward computes; the message says what is different."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights [outputs, inputs] and bias [outputs] of a linear layer."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class FusedLayerWeights:
    """One layer."""

    norm: Tensor
    projections: Matrix
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Matrix
    mlp_norm: Tensor
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class FusedWeights:
    """A model."""

    embedding: Tensor
    layers: tuple[FusedLayerWeights, ...]
    last_norm: Tensor
    head: Matrix
    epsilon: float
    head_epsilon: float
    """Of the norms of single heads."""
    rotary: nn.Module


def check_structure(module: PreTrainedModel, layers: Sequence[LayerSpec]) -> None:
    """Raises UnfitError where the model is built otherwise."""
    _check_layers(layers)
    base = module.base_model
    _check_children("the model", module, {module.base_model_prefix, "lm_head"})
    _check_children("its base", base, {"embed_tokens", "layers", "norm", "rotary_emb"})
    _require(type(_child(base, "embed_tokens")) is nn.Embedding, "its embedding is not a plain one")
    rotation = getattr(_child(base, "rotary_emb"), "rope_type", None)
    _require(rotation in _FIXED_ROTATIONS, f"its rotation is of type {rotation}, which depends on the batch")
    for layer in _layers(base):
        _check_layer(layer, layers[0])
    _epsilon(_norms(base))
    _epsilon(_head_norms(*_layers(base)))
    _linears(module, ("lm_head",))


def fuse_weights(module: PreTrainedModel) -> FusedWeights:
    """The weights of a module of that structure, joined."""
    base, pages = module.base_model, HugePages()
    (head,) = _linears(module, ("lm_head",))
    head.weight.data = pages.copy(head.weight.data)
    return FusedWeights(
        _weight(_child(base, "embed_tokens")),
        tuple(_fuse_layer(layer, pages) for layer in _layers(base)),
        _weight(_child(base, "norm")),
        Matrix(head.weight, head.bias),
        _epsilon(_norms(base)),
        _epsilon(_head_norms(*_layers(base))),
        _child(base, "rotary_emb"),
    )


def _check_layers(layers: Sequence[LayerSpec]) -> None:
    shapes = {(each.num_query_heads, each.num_kv_heads, each.head_dim, each.value_dim) for each in layers}
    _require(len(shapes) == 1, "its layers differ in heads")
    _require(layers[0].head_dim == layers[0].value_dim, "its keys and values differ in width")
    _require(not any(each.num_sinks or each.latent_dim for each in layers), "its attention has sinks or latents")


def _check_layer(layer: nn.Module, spec: LayerSpec) -> None:
    _check_children("a layer", layer, _LAYER)
    attention, mlp = _child(layer, "self_attn"), _child(layer, "mlp")
    heads, gate = _heads(attention), _gate(mlp)
    norms = {name for name, _ in attention.named_children()} & _HEAD_NORMS
    _check_children("its attention", attention, {*heads, "o_proj", *norms})
    _require(norms in (set(), _HEAD_NORMS), "only queries or only keys are normed")
    for norm in _head_norms(layer):
        _require(_weight(norm).shape == (spec.head_dim,), "norms of queries and keys are not those of single heads")
    activation = "activation_fn" if hasattr(mlp, "activation_fn") else "act_fn"
    _check_children("its MLP", mlp, {*gate, "down_proj", activation})
    act = _child(mlp, activation)
    _require(isinstance(act, nn.SiLU | SiLUActivation), f"its activation is {type(act).__name__}")
    _linears(attention, (*heads, "o_proj"))
    _linears(mlp, (*gate, "down_proj"))


def _check_children(what: str, module: nn.Module, expected: set[str]) -> None:
    found = {name for name, child in module.named_children() if not isinstance(child, nn.Dropout)}
    _require(found == expected, f"{what} is made of {', '.join(sorted(found))}")


def _child(module: nn.Module, name: str) -> nn.Module:
    return module.get_submodule(name)


def _weight(module: nn.Module) -> Tensor:
    try:
        return module.get_parameter("weight")
    except AttributeError as error:
        raise UnfitError(f"{type(module).__name__} has no weight") from error


def _layers(base: nn.Module) -> list[nn.Module]:
    return list(_child(base, "layers").children())


def _heads(attention: nn.Module) -> tuple[str, ...]:
    return _FUSED_HEADS if hasattr(attention, "qkv_proj") else _SPLIT_HEADS


def _gate(mlp: nn.Module) -> tuple[str, ...]:
    return _FUSED_GATE if hasattr(mlp, "gate_up_proj") else _SPLIT_GATE


def _linears(module: nn.Module, names: Sequence[str]) -> list[nn.Linear]:
    children = [_child(module, name) for name in names]
    for child in children:
        _require(type(child) is nn.Linear, f"{type(child).__name__} stands for a linear layer")
    return [child for child in children if isinstance(child, nn.Linear)]


def _norms(base: nn.Module) -> list[nn.Module]:
    names = ("input_layernorm", "post_attention_layernorm")
    return [_child(base, "norm"), *(_child(layer, name) for layer in _layers(base) for name in names)]


def _head_norms(*layers: nn.Module) -> list[nn.Module]:
    children = [child for layer in layers for child in _child(layer, "self_attn").named_children()]
    return [child for name, child in children if name in _HEAD_NORMS]


def _epsilon(norms: Sequence[nn.Module]) -> float:
    """Of all of them, which have weights and nothing else; 0 where there are none."""
    for norm in norms:
        names = [name for name, _ in norm.named_parameters()]
        _require(names == ["weight"], f"{type(norm).__name__} has the parameters {', '.join(names) or 'of none'}")
    found: set[object] = {getattr(norm, "variance_epsilon", getattr(norm, "eps", None)) for norm in norms}
    _require(len(found) <= 1, "its norms differ")
    epsilon = next(iter(found), 0.0)
    if not isinstance(epsilon, float):
        raise UnfitError("its norms are no RMS norms")
    return epsilon


def _fuse_layer(layer: nn.Module, pages: HugePages) -> FusedLayerWeights:
    attention, mlp = _child(layer, "self_attn"), _child(layer, "mlp")
    norms = {name: _weight(child) for name, child in attention.named_children() if name in _HEAD_NORMS}
    return FusedLayerWeights(
        norm=_weight(_child(layer, "input_layernorm")),
        projections=_join(_linears(attention, _heads(attention)), pages),
        query_norm=norms.get("q_norm"),
        key_norm=norms.get("k_norm"),
        output=_join(_linears(attention, ("o_proj",)), pages),
        mlp_norm=_weight(_child(layer, "post_attention_layernorm")),
        gate_up=_join(_linears(mlp, _gate(mlp)), pages),
        down=_join(_linears(mlp, ("down_proj",)), pages),
    )


def _join(linears: Sequence[nn.Linear], pages: HugePages) -> Matrix:
    """One matrix, of which the parameters of `linears` become views."""
    num_outputs = sum(linear.out_features for linear in linears)
    weight = pages.empty((num_outputs, linears[0].in_features), linears[0].weight.dtype)
    torch.cat([linear.weight.data for linear in linears], out=weight)
    biases = [_bias(linear) for linear in linears]
    bias = None if all(each is None for each in biases) else torch.cat([_or_zeros(linear) for linear in linears])
    start = 0
    for linear in linears:
        stop = start + linear.out_features
        linear.weight.data = weight[start:stop]
        if (own := _bias(linear)) is not None and bias is not None:
            own.data = bias[start:stop]
        start = stop
    return Matrix(weight, bias)


def _bias(linear: nn.Linear) -> Tensor | None:
    return linear.bias


def _or_zeros(linear: nn.Linear) -> Tensor:
    bias = _bias(linear)
    return torch.zeros(linear.out_features, dtype=linear.weight.dtype) if bias is None else bias


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise UnfitError(reason)
