"""Whether a load fits into a device's memory, and what would make it fit. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from cache_store.kv_layout import KvDtype
from cache_store.planning.model_shape import ModelShape
from cache_store.planning.pool import (
    Load,
    PoolPlan,
    blocks_needed,
    longest_context,
    plan_pool,
    pool_bytes_for,
    requests_that_fit,
)

_QUANTISED = (KvDtype.FLOAT8, KvDtype.INT8)


class RemedyKind(StrEnum):
    """What could be changed."""

    FEWER_REQUESTS = "fewer requests"
    SHORTER_CONTEXT = "shorter context"
    AS_USED = "as used"
    """Blocks are taken as they are filled: requests that rarely use their whole context fit by what they use."""
    KV_DTYPE = "KV dtype"
    WEIGHTS_DTYPE = "weights dtype"
    MORE_MEMORY = "more memory"
    MORE_WORKERS = "more workers"


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that alone makes the load fit."""

    kind: RemedyKind
    value: int | str
    """Requests, tokens, bytes, workers, or a type."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A load on one worker."""

    memory_bytes: int
    reserve_bytes: int
    """Kept for everything beside weights and cache."""
    room_bytes: int
    """Left for the cache; below 0 where not even the weights fit."""
    pool: PoolPlan
    num_requests: int
    """That fit at their whole context."""
    num_requests_as_used: int
    """That fit with the tokens that they really get."""
    blocks_needed: int
    longest_context: int
    """With which all requests fit, if only their length changes."""
    remedies: tuple[Remedy, ...]
    """Empty where it fits."""
    fits: bool


def fit(model: ModelShape, load: Load, memory_bytes: int, reserve_bytes: int) -> Fit:
    """Of a load on a device with so much memory."""
    room = memory_bytes - reserve_bytes - model.weights.total_bytes
    pool = plan_pool(model, room, load)
    needed = blocks_needed(load, model.block_size, load.num_requests)
    fits = needed <= pool.num_blocks
    return Fit(
        memory_bytes=memory_bytes,
        reserve_bytes=reserve_bytes,
        room_bytes=room,
        pool=pool,
        num_requests=requests_that_fit(load, model.block_size, pool.num_blocks),
        num_requests_as_used=requests_that_fit(_as_used(load), model.block_size, pool.num_blocks),
        blocks_needed=needed,
        longest_context=longest_context(load, model.block_size, pool.num_blocks),
        remedies=() if fits else tuple(_remedies(model, load, pool, memory_bytes, reserve_bytes)),
        fits=fits,
    )


def _remedies(model: ModelShape, load: Load, pool: PoolPlan, memory_bytes: int, reserve_bytes: int) -> Iterator[Remedy]:
    block_size = model.block_size
    num_requests = requests_that_fit(load, block_size, pool.num_blocks)
    context = longest_context(load, block_size, pool.num_blocks)
    if num_requests:
        yield Remedy(RemedyKind.FEWER_REQUESTS, num_requests)
    if context > load.shared_prefix:
        yield Remedy(RemedyKind.SHORTER_CONTEXT, context)
    if load.used < load.context and requests_that_fit(_as_used(load), block_size, pool.num_blocks) >= load.num_requests:
        yield Remedy(RemedyKind.AS_USED, load.used)
    needed = blocks_needed(load, block_size, load.num_requests)
    for dtype in _QUANTISED:
        if dtype.element_bytes < model.kv_dtype.element_bytes and not model.attention.latent_dim:
            narrower = replace(model, kv_dtype=dtype)
            room = memory_bytes - reserve_bytes - model.weights.total_bytes
            if needed <= plan_pool(narrower, room, load).num_blocks:
                yield Remedy(RemedyKind.KV_DTYPE, str(dtype))
    if model.dtype is KvDtype.FLOAT32 and not model.has_quantised_weights:
        own = KvDtype.BFLOAT16 if model.kv_dtype is model.dtype else model.kv_dtype
        room = memory_bytes - reserve_bytes - model.weights.total_bytes // 2
        if needed <= plan_pool(replace(model, kv_dtype=own), room, load).num_blocks:
            yield Remedy(RemedyKind.WEIGHTS_DTYPE, str(KvDtype.BFLOAT16))
    yield Remedy(
        RemedyKind.MORE_MEMORY,
        reserve_bytes + model.weights.total_bytes + pool_bytes_for(model, needed, load),
    )
    if num_requests:
        yield Remedy(RemedyKind.MORE_WORKERS, -(-load.num_requests // num_requests))


def _as_used(load: Load) -> Load:
    return replace(load, context=load.used, shared_prefix=min(load.shared_prefix, load.used))
