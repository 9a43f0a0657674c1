"""What sizes mean for time: bytes that a step reads, and loading against computing again. Pure.

A step reads all weights that a token passes and every running conversation's keys and values. That divided by the
memory's bandwidth is the least time that it can take, and near the time that it takes where few sequences decode.
"""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.planning.kv_cost import conversation_bytes
from cache_store.planning.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class Device:
    """Speeds as they are told; 0 where one is not known."""

    memory_bytes_per_s: float
    """That the device reads from its own memory."""
    link_bytes_per_s: float
    """Between the host's memory and the device."""
    flops: float
    """Floating-point operations per second that prefill reaches."""
    prefill_tokens_per_s: float
    """Measured; goes before `flops`."""


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One token for each of so many conversations."""

    context: int
    num_sequences: int
    weights_bytes: int
    kv_bytes: int
    step_s: float
    """At least; 0 where the bandwidth is not known."""

    @property
    def kv_part(self) -> float:
        """Of the bytes that are read."""
        return self.kv_bytes / (self.kv_bytes + self.weights_bytes)


def decode_step(model: ModelShape, device: Device, context: int, num_sequences: int) -> DecodeStep:
    """For conversations of the same length."""
    weights = int(model.weights.step_bytes(num_sequences))
    kv_bytes = num_sequences * conversation_bytes(model, context)
    step_s = (weights + kv_bytes) / device.memory_bytes_per_s if device.memory_bytes_per_s else 0.0
    return DecodeStep(context, num_sequences, weights, kv_bytes, step_s)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Loading a prefix from the host's memory against computing it again."""

    num_tokens: int
    load_bytes: int
    compute_flops: float
    load_s: float
    """0 where the link's speed is not known."""
    compute_s: float
    """0 where neither speed nor operations per second are known."""
    link_bytes_per_s: float
    """From which on loading is the faster; 0 where `compute_s` is not known."""
    bytes_per_flop: float
    """The same for any device: what the link must move while the device computes one operation."""


def break_even(model: ModelShape, device: Device, num_tokens: int) -> BreakEven:
    """Of a prefix of that many tokens: everything of it, as it comes back from a lower tier."""
    load_bytes = num_tokens * sum(map(model.bytes_per_token, model.groups))
    flops = prefill_flops(model, num_tokens)
    if device.prefill_tokens_per_s:
        compute_s = num_tokens / device.prefill_tokens_per_s
    else:
        compute_s = flops / device.flops if device.flops else 0.0
    return BreakEven(
        num_tokens=num_tokens,
        load_bytes=load_bytes,
        compute_flops=flops,
        load_s=load_bytes / device.link_bytes_per_s if device.link_bytes_per_s else 0.0,
        compute_s=compute_s,
        link_bytes_per_s=load_bytes / compute_s if compute_s else 0.0,
        bytes_per_flop=load_bytes / flops,
    )


def prefill_flops(model: ModelShape, num_tokens: int) -> float:
    """2 for each weight that a token passes, the head once, and 2 × width for each query, key and value that meet."""
    count, attention = model.weights.count, model.attention
    weights = 2.0 * (num_tokens * (count.active - count.head) + count.head)
    per_pair = 2.0 * attention.num_query_heads * (attention.query_dim + attention.value_dim)
    pairs = sum(len(group.layers) * _pairs(num_tokens, group.window) for group in model.groups)
    return weights + per_pair * pairs


def _pairs(num_tokens: int, window: int) -> float:
    """Queries and keys that meet in one causal layer."""
    if not window or window >= num_tokens:
        return num_tokens * (num_tokens + 1) / 2
    return window * (window + 1) / 2 + (num_tokens - window) * window
