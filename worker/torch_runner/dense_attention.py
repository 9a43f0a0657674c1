"""Causal attention of one sequence over dense keys and values, in torch operations, on any device.

Used by the contiguous runner, by the probe at load, and by the paged runner where there is no kernel. Query heads that
share a key head are packed as rows of one product, so key heads are never copied.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_QUERY_TILE = 256
"""Queries per product where a mask is needed: bounds the masked-off part to half a tile per query."""


def dense_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int, softcap: float, sinks: Tensor | None
) -> Tensor:
    """The last tokens of a sequence attend to it. query [query_heads, new, D], key and value [kv_heads, length, D].

    `key` may begin later than the sequence where a window hides what is left out. Values may have their own width.
    Returns [new, query_heads, width of a value].
    """
    num_new, length = query.shape[1], key.shape[1]
    if not softcap and sinks is None and num_new == length and (not window or window >= length):
        return _causal(query, key, value, scaling)
    tiles = [
        _tile(query[:, low : low + _QUERY_TILE], key, value, length - num_new + low, scaling, window, softcap, sinks)
        for low in range(0, num_new, _QUERY_TILE)
    ]
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles)


def _causal(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    output = scaled_dot_product_attention(
        query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), is_causal=True, scale=scaling, enable_gqa=True
    )
    return output[0].transpose(0, 1).contiguous()


def _tile(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start: int,
    scaling: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Queries at positions start, start + 1, ...; reads only keys that some of them see."""
    num_heads, num_rows, width = query.shape
    stop = start + num_rows
    first = max(0, start - window + 1) if window else 0
    key, value = key[:, first:stop], value[:, first:stop]
    num_kv_heads = key.shape[0]
    packed = query.reshape(num_kv_heads, -1, width)
    hidden = _hidden(num_rows, stop - first, start - first, window, query.device)
    if softcap or sinks is not None:
        output = _by_products(packed, key, value, hidden, scaling, softcap, sinks)
    else:
        output = _by_sdpa(packed, key, value, hidden, scaling)
    return output.reshape(num_heads, num_rows, value.shape[2]).transpose(0, 1).contiguous()


def _hidden(num_rows: int, num_keys: int, start: int, window: int, device: torch.device) -> Tensor | None:
    """True where row r, at position start + r among the keys, must not read key k; None where all read all."""
    if num_rows == 1:
        return None
    rows = torch.arange(start, start + num_rows, device=device).unsqueeze(1)
    keys = torch.arange(num_keys, device=device).unsqueeze(0)
    hidden = keys > rows
    return hidden | (keys <= rows - window) if window else hidden


def _by_sdpa(packed: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None, scaling: float) -> Tensor:
    bias = None
    if hidden is not None:
        bias = torch.zeros(hidden.shape, dtype=packed.dtype, device=packed.device).masked_fill_(hidden, -torch.inf)
        bias = bias.repeat(packed.shape[1] // hidden.shape[0], 1)
    output = scaled_dot_product_attention(
        packed.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), attn_mask=bias, scale=scaling
    )
    return output[0]


def _by_products(
    packed: Tensor,
    key: Tensor,
    value: Tensor,
    hidden: Tensor | None,
    scaling: float,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """What scaled_dot_product_attention cannot: capped scores, and sinks that take weight and give nothing."""
    scores = torch.matmul(packed, key.transpose(1, 2)) * scaling
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if hidden is not None:
        scores.view(key.shape[0], -1, *hidden.shape).masked_fill_(hidden, -torch.inf)
    if sinks is None:
        return torch.matmul(scores.softmax(-1), value)
    num_rows = packed.shape[1] // (sinks.shape[0] // key.shape[0])
    column = sinks.to(scores.dtype).view(key.shape[0], -1, 1).expand(-1, -1, num_rows).reshape(key.shape[0], -1, 1)
    weights = torch.cat((scores, column), -1).softmax(-1)
    return torch.matmul(weights[..., :-1], value)
