"""How a layer with latent attention makes keys and values of its latents, as views of the model's own weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class LatentProjection:
    """Linear maps of one layer; a key is the projected latent, then the rotary key as it is cached."""

    keys: Tensor
    """[query_heads, width without rotary, latent width]."""
    values: Tensor
    """[query_heads, value width, latent width]."""

    @property
    def rank(self) -> int:
        """Width of a latent without its rotary key."""
        return self.keys.shape[2]

    def absorb(self, query: Tensor) -> Tensor:
        """Queries [query_heads, tokens, key width] as queries of latents [query_heads, tokens, rank + rotary]."""
        width = self.keys.shape[1]
        return torch.cat((torch.bmm(query[..., :width], self.keys), query[..., width:]), dim=-1)

    def release(self, read: Tensor) -> Tensor:
        """What was read of latents [query_heads, tokens, rank] as what is read of values [.., .., value width]."""
        return torch.bmm(read, self.values.transpose(1, 2))

    def expand(self, latents: Tensor, heads: slice) -> tuple[Tensor, Tensor]:
        """Keys and values of some heads [heads, tokens, width] of latents [tokens, rank + rotary]."""
        latent, rotary = latents[:, : self.rank], latents[:, self.rank :]
        keys = torch.matmul(latent, self.keys[heads].transpose(1, 2))
        rotary = rotary.expand(keys.shape[0], -1, -1)
        return torch.cat((keys, rotary), dim=-1), torch.matmul(latent, self.values[heads].transpose(1, 2))


def latent_projections(model: PreTrainedModel) -> Mapping[int, LatentProjection]:
    """Of all layers with latent attention, by the layer's number; empty where a model has none.

    Raises NotImplementedError where a layer expands its latent by more than a matrix.
    """
    found: dict[int, LatentProjection] = {}
    for module in model.modules():
        expansion = getattr(module, "kv_b_proj", None)
        if not isinstance(expansion, nn.Linear) or not hasattr(module, "expand_kv"):
            continue
        if getattr(expansion, "bias", None) is not None:
            raise NotImplementedError("its latent attention adds a bias to what it expands")
        layer, width, value_width = (
            int(getattr(module, name)) for name in ("layer_idx", "qk_nope_head_dim", "v_head_dim")
        )
        weight = expansion.weight.view(-1, width + value_width, expansion.in_features)
        found[layer] = LatentProjection(weight[:, :width], weight[:, width:])
    return found
