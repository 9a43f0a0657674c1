"""What a model's masks hide: some models slide or look ahead by their masks alone and tell their attention nothing.

The hook gets no masks, since none is made for an attention that transformers does not know. So, for one forward at
load, a mask function is registered that asks transformers' own rule of a mask how far back it reaches, and hands the
answer to the attention in place of a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from worker.torch_runner.hook import HOOK_NAME, attend

_NAME = "stemcache_mask_probe"
_FAR = 1 << 40
"""A position that no window and no chunk reaches back from to the beginning."""
_ALL = 0.0
_OTHER = -1.0
"""In place of a window: the mask is none that a window describes."""

MaskRule = Callable[[int, int, Tensor, Tensor], Tensor]
"""Whether the key at a position is read by the query at another: (batch, head, query, key)."""

_WINDOWS: ContextVar[dict[int, float]] = ContextVar("stemcache_mask_windows")


def mask_windows(model: PreTrainedModel, forward: Callable[[], object]) -> dict[int, int]:
    """Per layer, the window of the mask that its attention gets; 0 for all, also where it gets none.

    `forward` runs the model once, over one sequence; it leaves the model set to the hook. Raises NotImplementedError
    where a mask is no window.
    """
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, _window_as_mask)
    windows: dict[int, float] = {}
    with _recording(windows):
        model.set_attn_implementation(_NAME)
        try:
            forward()
        finally:
            model.set_attn_implementation(HOOK_NAME)
    if any(window < 0 for window in windows.values()):
        raise NotImplementedError("its mask hides what no window describes, or lets tokens look ahead")
    return {layer: int(window) for layer, window in windows.items()}


def cache_windows(model: PreTrainedModel) -> dict[int, int]:
    """Per layer, the window of the cache that transformers itself would keep; 0 for all.

    Raises NotImplementedError where that cache keeps something else than keys and values.
    """
    windows: dict[int, int] = {}
    for index, layer in enumerate(DynamicCache(config=model.config).layers):
        if type(layer) is DynamicSlidingWindowLayer:
            windows[index] = int(layer.sliding_window)
        elif type(layer) is DynamicLayer:
            windows[index] = 0
        else:
            raise NotImplementedError(f"transformers keeps a {type(layer).__name__} for layer {index}")
    return windows


@contextmanager
def _recording(windows: dict[int, float]) -> Iterator[None]:
    token = _WINDOWS.set(windows)
    try:
        yield
    finally:
        _WINDOWS.reset(token)


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **arguments: object,  # whatever the hook takes
) -> tuple[Tensor, None]:
    layer = module.layer_idx
    assert isinstance(layer, int)
    found = _ALL if attention_mask is None else float(attention_mask.flatten()[0])
    _WINDOWS.get()[layer] = found
    return attend(module, query, key, value, None, **arguments)  # type: ignore[arg-type]  # passed on as they came


def _window_as_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: MaskRule,
    device: torch.device | str = "cpu",
    **_ignored: object,  # transformers' signature
) -> Tensor:
    return torch.full((batch_size, 1, q_length, kv_length), window_of(mask_function), device=device)


def window_of(rule: MaskRule) -> float:
    """Tokens that a query reads by `rule`, itself included; 0 for all, -1 where that is not all there is to tell."""

    def reads(query: int, distance: int) -> bool:
        return bool(rule(0, 0, torch.tensor(query), torch.tensor(query - distance)))

    if reads(_FAR, -1) or not reads(_FAR, 0):
        return _OTHER
    if reads(_FAR, _FAR):
        return _ALL
    low, high = 0, _FAR  # the largest distance known to be read, the smallest known not to be
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if reads(_FAR, middle) else (low, middle)
    shifted = _FAR + high - 1  # a window moves with the query, a chunk does not
    return float(high) if all(reads(at, low) and not reads(at, high) for at in (_FAR + 1, shifted)) else _OTHER
