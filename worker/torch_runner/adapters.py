"""LoRA in a batch of several adapters: y = W x + B (A x) for the tokens of each row that names one.

The model's linear layers are left as they are. While a step with such rows runs, the layers that its adapters target
answer by another `forward`, which adds what each adapter adds for its own tokens; a step without such rows runs the
model untouched. Weights of adapters are brought to the model's type, the scale multiplied into B. One thread attaches,
detaches and runs steps; any thread may prepare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from cache_store.adapter_files import AdaptedModule, AdapterContent, AdapterTensor
from cache_store.domain import NO_ADAPTER, AdapterDigest
from cache_store.lora_config import refusal
from worker.runner import PreparedAdapter
from worker.step_plan import Row
from worker.torch_runner.fixed_linear import FixedLinear

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LATENT_EXPANSION = "kv_b_proj"


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """What one adapter adds to one layer."""

    a: Tensor
    """[rank, inputs]."""
    b: Tensor
    """[outputs, rank], times the scale."""


Layers = Mapping[str, LoraWeights]
"""By the path of the layer."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens of a batch that one adapter is for."""

    tokens: slice | Tensor
    layers: Layers


@dataclass(frozen=True, slots=True)
class StepAdapters:
    """What the adapters of one step do, and to which layers."""

    num_tokens: int
    segments: tuple[Segment, ...]
    linears: Mapping[str, nn.Linear]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the block the layers answer with what the adapters add."""
        paths = {path for segment in self.segments for path in segment.layers}
        targets = [(self.linears[path], self._forward(path)) for path in paths]
        try:
            for linear, forward in targets:
                linear.__dict__["forward"] = forward  # as nn.Module finds it; its own __setattr__ only takes longer
            yield
        finally:
            for linear, _ in targets:
                linear.__dict__.pop("forward", None)

    def _forward(self, path: str) -> _AdaptedForward:
        parts = [(each.tokens, each.layers[path]) for each in self.segments if path in each.layers]
        return _AdaptedForward(self.linears[path], self.num_tokens, parts)


class _AdaptedForward:
    """Stands in for the `forward` of one layer during one step."""

    __slots__ = ("_linear", "_num_tokens", "_parts")

    def __init__(self, linear: nn.Linear, num_tokens: int, parts: list[tuple[slice | Tensor, LoraWeights]]) -> None:
        self._linear = linear
        self._num_tokens = num_tokens
        self._parts = parts

    def __call__(self, inputs: Tensor) -> Tensor:
        outputs = nn.functional.linear(inputs, self._linear.weight, self._linear.bias)
        x, y = inputs.reshape(-1, inputs.shape[-1]), outputs.view(-1, outputs.shape[-1])
        if x.shape[0] != self._num_tokens:
            raise RuntimeError(f"an adapted layer is given {x.shape[0]} tokens of a batch of {self._num_tokens}")
        for tokens, weights in self._parts:
            if isinstance(tokens, slice):
                y[tokens].addmm_(x[tokens] @ weights.a.T, weights.b.T)
            else:
                y.index_add_(0, tokens, (x[tokens] @ weights.a.T) @ weights.b.T)
        return outputs


class AdapterSet:
    """Adapters of one model."""

    def __init__(self, module: PreTrainedModel) -> None:
        # exactly nn.Linear: what is derived from it computes something else
        self._linears = {path: each for path, each in module.named_modules() if type(each) is nn.Linear}
        self._modules = dict(module.named_modules())
        self._output = module.get_output_embeddings()
        self._attached: dict[AdapterDigest, Layers] = {}

    def prepare(self, content: AdapterContent) -> PreparedAdapter:
        """The adapter's matrices, checked against the layers. Raises InvalidRequestError."""
        layers = {module.path: self._weights(module, content) for module in content.modules}
        return PreparedAdapter(content.digest, layers)

    def attach(self, adapter: PreparedAdapter) -> None:
        """From now on rows may name it. Idempotent."""
        assert isinstance(adapter.weights, dict)
        self._attached[adapter.digest] = adapter.weights

    def detach(self, adapter: AdapterDigest) -> None:
        """Lets go of it. Idempotent."""
        self._attached.pop(adapter, None)

    def of_step(self, rows: Sequence[Row]) -> StepAdapters | None:
        """None where no row names one."""
        if all(row.adapter == NO_ADAPTER for row in rows):
            return None
        spans: dict[AdapterDigest, list[tuple[int, int]]] = {}
        start = 0
        for row in rows:
            stop = start + len(row.token_ids)
            if row.adapter != NO_ADAPTER:
                _extend(spans.setdefault(row.adapter, []), start, stop)
            start = stop
        segments = tuple(Segment(self._tokens(ranges), self._attached[each]) for each, ranges in spans.items())
        return StepAdapters(start, segments, self._linears)

    def _tokens(self, ranges: list[tuple[int, int]]) -> slice | Tensor:
        if len(ranges) == 1:
            return slice(*ranges[0])
        numbers = np.concatenate([np.arange(start, stop) for start, stop in ranges])
        return torch.from_numpy(numbers).to(next(iter(self._linears.values())).weight.device)

    def _weights(self, module: AdaptedModule, content: AdapterContent) -> LoraWeights:
        linear = self._linear(module, content)
        shape = (module.b.shape[0], module.a.shape[1])
        if shape != (linear.out_features, linear.in_features):
            raise refusal(
                f"{content.folder}: the adapter's {module.path} is of {shape[1]} inputs and {shape[0]} outputs, the "
                f"model's has {linear.in_features} and {linear.out_features}: it was trained for another model"
            )
        a, b = (_tensor(each, content) for each in (module.a, module.b))
        if not (a.isfinite().all() and b.isfinite().all()):
            raise refusal(f"{content.folder}: the weights of {module.path} are not all finite numbers")
        device, dtype = linear.weight.device, linear.weight.dtype
        return LoraWeights(a.to(device, dtype), (b.float() * module.scale).to(device, dtype))

    def _linear(self, module: AdaptedModule, content: AdapterContent) -> nn.Linear:
        path = module.path
        linear = self._linears.get(path)
        if linear is None and path not in self._modules:
            raise refusal(
                f"{content.folder}: the adapter targets {path}, which the model does not have: it was trained for "
                "another model"
            )
        if isinstance(self._modules[path], FixedLinear):
            raise refusal(f"{content.folder}: workers started with --deterministic serve no adapters")
        if linear is None:
            kind = type(self._modules[path]).__name__
            raise refusal(f"{content.folder}: the adapter targets {path}, a {kind}; served are linear layers")
        if linear is self._output:
            raise refusal(f"{content.folder}: the adapter targets {path}, the model's head, which is not served")
        if ".experts." in path or path.endswith(_LATENT_EXPANSION):
            raise refusal(
                f"{content.folder}: the adapter targets {path}, which computes other tokens than those of the batch in "
                "their order (an expert, or the expansion of cached latents); this is not served"
            )
        return linear


def _extend(ranges: list[tuple[int, int]], start: int, stop: int) -> None:
    if ranges and ranges[-1][1] == start:
        ranges[-1] = (ranges[-1][0], stop)
    else:
        ranges.append((start, stop))


def _tensor(tensor: AdapterTensor, content: AdapterContent) -> Tensor:
    """A copy: the content's bytes are let go of."""
    raw = bytearray(memoryview(content.data)[tensor.start : tensor.stop])
    if not raw:
        return torch.empty(tensor.shape, dtype=_DTYPES[tensor.dtype])
    return torch.frombuffer(raw, dtype=_DTYPES[tensor.dtype]).reshape(tensor.shape)
