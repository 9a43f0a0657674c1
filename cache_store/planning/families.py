"""What config.json leaves to an architecture's code: defaults of its fields, which layers slide, which weights exist.

One entry per `model_type`. Tests compare each with the architecture's own code. Knows no file and no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType


class WindowRule(StrEnum):
    """Which layers slide where `layer_types` is not written down."""

    NEVER = "never"
    ALL = "all"
    """All of them, where `sliding_window` is set."""
    FROM_LAYER = "from layer"
    """From layer `max_window_layers` on, where `use_sliding_window` is set."""
    EVEN_BEFORE = "even before"
    """Even ones below layer `max_window_layers`, where `use_sliding_window` is set."""
    ALL_BUT_EVERY = "all but every"
    """All but every `sliding_window_pattern`-th."""
    WITHOUT_ROPE = "without rope"
    """Those without position embedding, every `no_rope_layer_interval`-th, where `use_sliding_window` is set."""


class HeadNorm(StrEnum):
    """Weights of a norm of queries and of keys."""

    NONE = "none"
    PER_HEAD = "per head"
    """One head's width, shared by all heads."""
    ALL_HEADS = "all heads"
    """The width of all heads together."""


class Part(StrEnum):
    """Linear layers that may have a bias."""

    QKV = "qkv"
    OUT = "out"
    MLP = "mlp"


@dataclass(frozen=True, slots=True)
class ExpertFields:
    """Which fields describe a mixture of experts."""

    number: str
    per_token: str = "num_experts_per_tok"  # noqa: S105 - a field of config.json
    width: str = "moe_intermediate_size"
    newer_number: str | None = None
    """How newer files call the field `number`."""
    first_dense: str | None = None
    """Field with the number of leading layers without experts."""
    sparse_step: str | None = None
    """Field that says that only every so manieth layer has experts, beside `mlp_only_layers`."""
    num_shared: str | None = None
    """Field with the number of experts that every token passes, each as wide as the others."""
    shared_width: str | None = None
    """Field with the width of one expert that every token passes, behind a gate of its own."""
    has_bias: bool = False
    """Router and experts have biases."""


@dataclass(frozen=True, slots=True)
class Family:
    """What is the same for all models of a type."""

    defaults: Mapping[str, int | bool | None] = field(default_factory=lambda: MappingProxyType({}))
    """Fields that files may leave out."""
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Usual field → its name in this architecture."""
    windows: WindowRule = WindowRule.NEVER
    head_norm: HeadNorm = HeadNorm.NONE
    head_norm_field: str | None = None
    """Field that switches the norms of heads on."""
    biases: Mapping[str, tuple[Part, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Field that switches biases on → what then has one."""
    always_biased: tuple[Part, ...] = ()
    num_norms: int = 2
    """Per layer, each as wide as the hidden state; and one at the end."""
    norm_vectors: int = 1
    """2 where a norm has a bias too."""
    is_gated: bool = True
    """The MLP has a gate beside up and down projection."""
    has_sinks: bool = False
    has_position_table: bool = False
    experts: ExpertFields | None = None


_BOTH = (Part.QKV, Part.OUT)
_ATTENTION_BIAS = MappingProxyType({"attention_bias": _BOTH})
_LLAMA = Family(biases=MappingProxyType({"attention_bias": _BOTH, "mlp_bias": (Part.MLP,)}))
_QWEN2 = Family(
    defaults={"max_window_layers": 28, "sliding_window": 4096, "use_sliding_window": False},
    windows=WindowRule.FROM_LAYER,
    always_biased=(Part.QKV,),
)
_QWEN3 = replace(
    _QWEN2,
    defaults={**_QWEN2.defaults, "head_dim": 128},
    head_norm=HeadNorm.PER_HEAD,
    always_biased=(),
    biases=_ATTENTION_BIAS,
)
_GEMMA = Family(
    defaults={"head_dim": 256, "tie_word_embeddings": True, "num_key_value_heads": 16, "vocab_size": 256_000},
    biases=_ATTENTION_BIAS,
)
_GEMMA2 = replace(
    _GEMMA,
    defaults={
        **_GEMMA.defaults,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
        "max_position_embeddings": 8_192,
    },
    windows=WindowRule.ALL_BUT_EVERY,
    num_norms=4,
)
_DEEPSEEK = Family(
    defaults={"n_shared_experts": 2, "first_k_dense_replace": 0, "n_routed_experts": 64},
    biases=MappingProxyType({"attention_bias": (Part.OUT,), "mlp_bias": (Part.MLP,)}),
    experts=ExpertFields("n_routed_experts", first_dense="first_k_dense_replace", num_shared="n_shared_experts"),
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": _LLAMA,
        "mistral": Family(defaults={"sliding_window": 4096, "num_key_value_heads": 8}, windows=WindowRule.ALL),
        "mixtral": Family(
            defaults={"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
            windows=WindowRule.ALL,
            experts=ExpertFields("num_local_experts", width="intermediate_size"),
        ),
        "qwen2": _QWEN2,
        "qwen2_moe": replace(
            _QWEN2,
            windows=WindowRule.EVEN_BEFORE,
            experts=ExpertFields(
                "num_experts", sparse_step="decoder_sparse_step", shared_width="shared_expert_intermediate_size"
            ),
        ),
        "qwen3": _QWEN3,
        "qwen3_moe": replace(
            _QWEN3,
            defaults={"use_sliding_window": False, "sliding_window": 4096, "num_key_value_heads": 4},
            windows=WindowRule.ALL,
            experts=ExpertFields("num_experts", newer_number="num_local_experts", sparse_step="decoder_sparse_step"),
        ),
        "gemma": _GEMMA,
        "gemma2": _GEMMA2,
        "gemma3_text": replace(
            _GEMMA2,
            defaults={
                **_GEMMA2.defaults,
                "sliding_window_pattern": 6,
                "vocab_size": 262_208,
                "max_position_embeddings": 131_072,
            },
            head_norm=HeadNorm.PER_HEAD,
        ),
        "gpt_oss": Family(
            defaults={
                "head_dim": 64,
                "num_key_value_heads": 8,
                "sliding_window": 128,
                "sliding_window_pattern": 2,
                "attention_bias": True,
            },
            windows=WindowRule.ALL_BUT_EVERY,
            biases=_ATTENTION_BIAS,
            has_sinks=True,
            experts=ExpertFields("num_local_experts", width="intermediate_size", has_bias=True),
        ),
        "phi3": Family(windows=WindowRule.ALL),
        "gpt2": Family(
            defaults={"tie_word_embeddings": True, "num_key_value_heads": None, "intermediate_size": None},
            names=MappingProxyType(
                {
                    "hidden_size": "n_embd",
                    "num_hidden_layers": "n_layer",
                    "num_attention_heads": "n_head",
                    "intermediate_size": "n_inner",
                    "max_position_embeddings": "n_positions",
                }
            ),
            always_biased=(Part.QKV, Part.OUT, Part.MLP),
            norm_vectors=2,
            is_gated=False,
            has_position_table=True,
        ),
        "starcoder2": Family(
            defaults={"num_key_value_heads": 2, "tie_word_embeddings": True, "use_bias": True},
            windows=WindowRule.ALL,
            biases=MappingProxyType({"use_bias": (Part.QKV, Part.OUT, Part.MLP)}),
            norm_vectors=2,
            is_gated=False,
        ),
        "olmo2": Family(biases=_ATTENTION_BIAS, head_norm=HeadNorm.ALL_HEADS),
        "olmo3": Family(
            defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
            windows=WindowRule.ALL_BUT_EVERY,
            biases=_ATTENTION_BIAS,
            head_norm=HeadNorm.ALL_HEADS,
        ),
        "granite": _LLAMA,
        "granitemoe": Family(
            biases=_ATTENTION_BIAS, experts=ExpertFields("num_local_experts", width="intermediate_size")
        ),
        "ministral": Family(defaults={"num_key_value_heads": 8, "sliding_window": 4096}, windows=WindowRule.ALL),
        "ministral3": Family(defaults={"num_key_value_heads": 8, "head_dim": 128}, windows=WindowRule.ALL),
        "arcee": replace(_LLAMA, is_gated=False),
        "ernie4_5": Family(
            defaults={"num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": True, "use_bias": False},
            biases=MappingProxyType({"use_bias": (Part.QKV, Part.OUT, Part.MLP)}),
        ),
        "exaone4": Family(
            defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
            windows=WindowRule.ALL_BUT_EVERY,
            head_norm=HeadNorm.PER_HEAD,
        ),
        "cohere": Family(
            defaults={"tie_word_embeddings": True},
            biases=_ATTENTION_BIAS,
            head_norm=HeadNorm.ALL_HEADS,
            head_norm_field="use_qk_norm",
            num_norms=1,
        ),
        "cohere2": Family(
            defaults={"tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 4},
            windows=WindowRule.ALL_BUT_EVERY,
            biases=_ATTENTION_BIAS,
            num_norms=1,
        ),
        "smollm3": replace(
            _LLAMA,
            defaults={
                "num_key_value_heads": 4,
                "tie_word_embeddings": True,
                "use_sliding_window": False,
                "no_rope_layer_interval": 4,
            },
            windows=WindowRule.WITHOUT_ROPE,
        ),
        "glm": Family(
            defaults={"head_dim": 128, "num_key_value_heads": 2, "attention_bias": True},
            biases=MappingProxyType({"attention_bias": (Part.QKV,)}),
        ),
        "glm4": Family(
            defaults={"head_dim": 128, "num_key_value_heads": 2, "attention_bias": True},
            biases=MappingProxyType({"attention_bias": (Part.QKV,)}),
            num_norms=4,
        ),
        "glm4_moe": Family(
            defaults={"num_key_value_heads": 8, "n_shared_experts": 1, "first_k_dense_replace": 1},
            biases=MappingProxyType({"attention_bias": (Part.QKV,)}),
            head_norm=HeadNorm.PER_HEAD,
            head_norm_field="use_qk_norm",
            experts=ExpertFields(
                "n_routed_experts", first_dense="first_k_dense_replace", num_shared="n_shared_experts"
            ),
        ),
        "seed_oss": Family(
            defaults={"head_dim": 128, "num_key_value_heads": 8, "attention_bias": True, "attention_out_bias": False},
            biases=MappingProxyType(
                {"attention_bias": (Part.QKV,), "attention_out_bias": (Part.OUT,), "mlp_bias": (Part.MLP,)}
            ),
        ),
        "deepseek_v2": _DEEPSEEK,
        "deepseek_v3": replace(
            _DEEPSEEK,
            defaults={"n_shared_experts": 1, "first_k_dense_replace": 3, "n_routed_experts": 256},
            biases=MappingProxyType({}),
        ),
    }
)
"""By `model_type`."""

WRAPPERS = MappingProxyType({"gemma3": "gemma3_text", "mistral3": "mistral"})
"""Models with pictures → the type of the language model in their `text_config`."""
