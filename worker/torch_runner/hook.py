"""The one place where transformers' model code calls into the cache.

Models look their attention up by name in ALL_ATTENTION_FUNCTIONS; ours forwards to whatever the running forward has
put into its context. The context is used instead of keyword arguments because some models drop unknown ones. Knows
neither pools nor steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

HOOK_NAME = "stemcache"
"""Name of the attention implementation; no mask function is registered under it, so models build no masks."""


class LayerAttention(Protocol):
    """Attention of all layers during one forward."""

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
        """Stores keys and values of the step's tokens and returns what each token reads.

        query [query_heads, tokens, head_dim], key and value [kv_heads, tokens, head_dim], any strides with a dense last
        dimension, values of their own width; window and softcap are 0 where there is none; sinks [query_heads].
        Returns [tokens, query_heads, width of a value], contiguous.
        """
        ...


_CURRENT: ContextVar[LayerAttention] = ContextVar("stemcache_attention")


@contextmanager
def attention_context(attention: LayerAttention) -> Iterator[None]:
    """Makes `attention` answer the hook inside the block, in this thread only."""
    token = _CURRENT.set(attention)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def register() -> None:
    """Puts the hook into transformers' table. Idempotent."""
    ALL_ATTENTION_FUNCTIONS.register(HOOK_NAME, attend)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **_ignored: object,  # transformers' signature: models pass what only other back ends read
) -> tuple[Tensor, None]:
    """Query [1, query_heads, tokens, head_dim]; returns [1, tokens, query_heads, head_dim] as transformers expects."""
    if attention_mask is not None or position_bias is not None or dropout or is_causal is False:
        raise NotImplementedError("the attention asks for a mask, a position bias, dropout or to look ahead")
    layer = module.layer_idx
    assert isinstance(layer, int)
    output = _CURRENT.get().attend(
        layer,
        query[0],
        key[0],
        value[0],
        query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        sliding_window or 0,
        softcap or 0.0,
        s_aux,
    )
    return output.unsqueeze(0), None
