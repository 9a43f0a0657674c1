"""How many weights a model has, by its config.json: where they are, and which of them a step reads.

Tests compare the sums with the architectures' own code, parameter by parameter.
"""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.planning.families import HeadNorm, Part
from cache_store.planning.layers import AttentionShape
from cache_store.planning.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class ExpertCount:
    """The experts of a mixture, those aside that every token passes."""

    num_layers: int = 0
    """That have experts."""
    num_experts: int = 0
    """In each of them."""
    per_token: int = 0
    """Of them that a token passes."""
    weights: int = 0
    """Of one expert in one layer."""

    @property
    def total(self) -> int:
        """Weights of all experts."""
        return self.num_layers * self.num_experts * self.weights

    @property
    def per_token_total(self) -> int:
        """Weights of the experts that one token passes."""
        return self.num_layers * self.per_token * self.weights


@dataclass(frozen=True, slots=True)
class WeightCount:
    """Numbers of weights."""

    lookup: int
    """Tables of which a token reads one row: input embeddings where the head has its own weights, positions."""
    head: int
    """What a token's logits are computed with."""
    dense: int
    """What every token passes beside it."""
    experts: ExpertCount

    @property
    def total(self) -> int:
        """All of them."""
        return self.lookup + self.head + self.dense + self.experts.total

    @property
    def active(self) -> int:
        """That one token is multiplied with."""
        return self.head + self.dense + self.experts.per_token_total


def count_weights(config: ModelConfig, attention: AttentionShape) -> WeightCount:
    """Raises InvalidRequestError where a field is missing."""
    hidden, num_layers = config.number("hidden_size"), config.number("num_hidden_layers")
    table = config.number("vocab_size") * hidden
    is_tied = config.is_set("tie_word_embeddings")
    norm = hidden * config.family.norm_vectors
    positions = config.number("max_position_embeddings") * hidden if config.family.has_position_table else 0
    experts, beside_experts, num_expert_layers = _experts(config, hidden)
    mlp = _mlp(config, hidden, _mlp_width(config, hidden), config.family.is_gated)
    layers = num_layers * (_attention(config, attention, hidden) + config.family.num_norms * norm)
    feed_forward = (num_layers - num_expert_layers) * mlp + num_expert_layers * beside_experts
    return WeightCount(
        lookup=positions + (0 if is_tied else table), head=table, dense=norm + layers + feed_forward, experts=experts
    )


def _attention(config: ModelConfig, attention: AttentionShape, hidden: int) -> int:
    if attention.latent_dim:
        return _latent_attention(config, attention, hidden)
    queries = attention.num_query_heads * attention.query_dim
    keys = attention.num_kv_heads * attention.query_dim
    weights = hidden * (queries + 2 * keys) + queries * hidden
    if _has_bias(config, Part.QKV):
        weights += queries + 2 * keys
    if _has_bias(config, Part.OUT):
        weights += hidden
    if config.family.has_sinks:
        weights += attention.num_query_heads
    norm_field = config.family.head_norm_field
    if norm_field is not None and not config.is_set(norm_field):
        return weights
    by_norm = {
        HeadNorm.NONE: 0,
        HeadNorm.PER_HEAD: 2 * attention.query_dim,
        HeadNorm.ALL_HEADS: queries + keys,
    }
    return weights + by_norm[config.family.head_norm]


def _latent_attention(config: ModelConfig, attention: AttentionShape, hidden: int) -> int:
    heads, rank = attention.num_query_heads, config.number("kv_lora_rank")
    queries = heads * attention.query_dim
    query_rank = config.optional("q_lora_rank")
    weights = query_rank * (hidden + 1 + queries) if query_rank else hidden * queries
    weights += hidden * attention.latent_dim + rank  # to the latent and the rotary key, and the latent's norm
    weights += rank * heads * (config.number("qk_nope_head_dim") + attention.value_dim)
    weights += heads * attention.value_dim * hidden
    if config.is_set("attention_bias"):
        weights += (query_rank or 0) + attention.latent_dim + hidden
    return weights


def _has_bias(config: ModelConfig, part: Part) -> bool:
    family = config.family
    return part in family.always_biased or any(
        part in parts and config.is_set(name) for name, parts in family.biases.items()
    )


def _mlp_width(config: ModelConfig, hidden: int) -> int:
    return config.optional("intermediate_size") or 4 * hidden


def _mlp(config: ModelConfig, hidden: int, width: int, is_gated: bool) -> int:
    weights = (3 if is_gated else 2) * hidden * width
    if _has_bias(config, Part.MLP):
        weights += (2 if is_gated else 1) * width + hidden
    return weights


def _experts(config: ModelConfig, hidden: int) -> tuple[ExpertCount, int, int]:
    """Experts, what their layers have beside them in the place of an MLP, and the number of those layers."""
    fields = config.family.experts
    if fields is None:
        return ExpertCount(), 0, 0
    newer = config.optional(fields.newer_number) if fields.newer_number else None
    num_experts = config.optional(fields.number) or newer
    if not num_experts:
        return ExpertCount(), 0, 0
    width = config.number(fields.width)
    weights, router = 3 * hidden * width, num_experts * hidden
    if fields.has_bias:
        weights, router = weights + 2 * width + hidden, router + num_experts
    beside = router
    if fields.num_shared:
        num_shared = config.optional(fields.num_shared) or 0
        beside += _mlp(config, hidden, width * num_shared, is_gated=True) if num_shared else 0
    if fields.shared_width:
        beside += 3 * hidden * config.number(fields.shared_width) + hidden  # and a gate
    num_layers = _num_expert_layers(config)
    return ExpertCount(num_layers, num_experts, config.number(fields.per_token), weights), beside, num_layers


def _num_expert_layers(config: ModelConfig) -> int:
    fields, num_layers = config.family.experts, config.number("num_hidden_layers")
    assert fields is not None
    first = config.optional(fields.first_dense) or 0 if fields.first_dense else 0
    step = config.optional(fields.sparse_step) or 1 if fields.sparse_step else 1
    dense = set(config.numbers("mlp_only_layers") or ()) if fields.sparse_step else set()
    return sum(layer >= first and layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers))
