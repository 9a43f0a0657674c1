"""The second place where transformers' model code calls into the cache: latents, before they are expanded.

Models with latent attention (MLA) cache one vector per token, of which keys and values of all heads are made at use.
The attention hook sees them expanded; a cache object handed to the forward sees the latent. Ours stores the new tokens'
latents and gives nothing but them back, so that the model expands no older token: that is the attention's business.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import Cache


@runtime_checkable
class LatentStore(Protocol):
    """Keeps the latents of the tokens of one forward."""

    def store_latents(self, layer: int, latents: Tensor) -> None:
        """`latents` [tokens, latent width + rotary width], in the order of the batch; before the layer attends."""
        ...


class LatentCache(Cache):  # type: ignore[misc]  # transformers has no type for it
    """Valid for one forward over a flattened batch."""

    def __init__(self, store: LatentStore) -> None:
        super().__init__(layers=[])
        self._store = store

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *_args: object,
        **_kwargs: object,  # transformers' signature
    ) -> tuple[Tensor, Tensor]:
        """Latent [1, 1, tokens, width] and rotary key [1, 1, tokens, width] of the new tokens, as they came."""
        self._store.store_latents(layer_idx, torch.cat((key_states[0, 0], value_states[0, 0]), dim=-1))
        return key_states, value_states

    def update_indexer(self, _indexer_key_states: Tensor, _layer_idx: int) -> Tensor:
        """Refuses what no cache group holds."""
        raise NotImplementedError("sparse attention needs the keys of an indexer beside the cache")


def cache_arguments(attention: object) -> dict[str, LatentCache]:
    """Arguments of a model's forward that hand it the cache; none where `attention` stores no latents."""
    return {"cache": LatentCache(attention)} if isinstance(attention, LatentStore) else {}
