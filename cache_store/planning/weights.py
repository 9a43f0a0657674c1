"""Bytes of a model's weights: by the headers of its files where they are there, else counted from config.json."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from cache_store.errors import InvalidRequestError
from cache_store.kv_layout import KvDtype
from cache_store.planning.model_config import ModelConfig
from cache_store.planning.tensor_headers import TensorHeader
from cache_store.planning.weight_count import WeightCount

_LOOKUPS = ("embed_tokens.weight", "wte.weight", "wpe.weight", "embed_in.weight")
_EXPERTS = ".experts."
_MXFP4_BITS = 4.25
"""4 bits, and 8 bits of scale for every 32 of them."""


class WeightSource(StrEnum):
    """Where the bytes are known from."""

    HEADERS = "headers of the safetensors files"
    COUNTED = "counted from config.json"
    GIVEN = "as given"


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights in a device's memory."""

    source: WeightSource
    lookup_bytes: int
    """Tables of which a token reads a row."""
    dense_bytes: int
    """What every step reads."""
    expert_bytes: int
    """All experts of a mixture together."""
    count: WeightCount
    """By config.json."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.lookup_bytes + self.dense_bytes + self.expert_bytes

    def step_bytes(self, num_tokens: int) -> float:
        """What a step of so many tokens reads; experts are taken to be chosen evenly and independently."""
        experts = self.count.experts
        if not experts.num_experts:
            return float(self.dense_bytes)
        untouched = (1 - experts.per_token / experts.num_experts) ** num_tokens
        return self.dense_bytes + self.expert_bytes * (1 - untouched)


def counted_weights(config: ModelConfig, count: WeightCount, dtype: KvDtype) -> Weights:
    """Raises InvalidRequestError where a quantisation does not tell how many bits it takes."""
    bits = 8.0 * dtype.element_bytes
    dense_bits, expert_bits = _quantised_bits(config, bits)
    dense = count.head * bits + count.dense * dense_bits
    return Weights(
        WeightSource.COUNTED,
        lookup_bytes=int(count.lookup * bits / 8),
        dense_bytes=int(dense / 8),
        expert_bytes=int(count.experts.total * expert_bits / 8),
        count=count,
    )


def stored_weights(headers: Iterable[TensorHeader], count: WeightCount, dtype: KvDtype, is_tied: bool) -> Weights:
    """Floats take the bytes of `dtype`, everything else what it takes in the file."""
    sizes = {"lookup": 0.0, "dense": 0.0, "expert": 0.0}
    for header in headers:
        bits = 8 * dtype.element_bytes if header.is_float else header.bits
        part = "expert" if _EXPERTS in header.name else "dense"
        if header.name.endswith(_LOOKUPS) and not is_tied:
            part = "lookup"
        sizes[part] += header.num_elements * bits / 8
    return Weights(WeightSource.HEADERS, int(sizes["lookup"]), int(sizes["dense"]), int(sizes["expert"]), count)


def given_weights(total_bytes: int, count: WeightCount) -> Weights:
    """Divided into parts as the counted weights are."""
    lookup = total_bytes * count.lookup // count.total
    experts = total_bytes * count.experts.total // count.total
    return Weights(WeightSource.GIVEN, lookup, total_bytes - lookup - experts, experts, count)


def _quantised_bits(config: ModelConfig, bits: float) -> tuple[float, float]:
    """Bits of a weight of the layers, and of an expert."""
    settings = config.mapping("quantization_config")
    if not settings:
        return bits, bits
    method = settings.get("quant_method")
    if method == "mxfp4":
        return bits, _MXFP4_BITS
    if method == "fp8":
        return 8.0, 8.0
    width, group = settings.get("bits"), settings.get("group_size")
    if method in {"gptq", "awq"} and isinstance(width, int) and isinstance(group, int) and group > 0:
        each = width + (16 + width) / group  # a 16-bit scale and a zero point for each group
        return each, each
    raise InvalidRequestError(
        "model",
        f"the weights are quantised by {method!r}, whose size config.json does not tell; give the folder with its "
        "safetensors files, or --weights SIZE",
    )
