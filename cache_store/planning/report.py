"""The whole answer to "what fits where": what is asked, and everything that follows from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cache_store.errors import InvalidRequestError
from cache_store.planning.fit import Fit, fit
from cache_store.planning.kv_cost import KvCost, conversation_bytes, kv_cost
from cache_store.planning.model_shape import ModelShape
from cache_store.planning.pool import Load, Reservation, reservation
from cache_store.planning.speed import BreakEven, DecodeStep, Device, break_even, decode_step
from cache_store.planning.tenant_parts import TenantPart, tenant_parts
from cache_store.quota import TenantQuota

VALKEY_BYTES = (38.0, 55.0)
"""Of index memory for each block of a worker: what a set takes in the embedded Valkey 9.1, measured by adding 20,000 to
a million blocks; it depends on how full the set's table is. `make bench-index` prints it."""
REDIS7_BYTES = (67.0, 90.0)
"""The same in Redis 7.0.15."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a model."""

    load: Load
    memory_bytes: int
    """Of the device; 0: not asked."""
    reserve_bytes: int
    device: Device
    tenants: Mapping[str, TenantQuota]
    contexts: tuple[int, ...]
    """For which decode steps are told."""


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """Weights in memory."""

    source: str
    dtype: str
    is_quantised: bool
    num_weights: int
    num_active: int
    """That one token is multiplied with."""
    total_bytes: int
    step_bytes: int
    """Read in a step of one token."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Keys and values of the load beside the weights."""

    kv_bytes: int
    kv_to_weights: float
    tokens_like_weights: int
    """Of one conversation whose keys and values take as many bytes as the weights; 0 where windows bound them."""


@dataclass(frozen=True, slots=True)
class IndexReport:
    """Memory in Redis for the blocks of one worker, from and to."""

    num_blocks: int
    valkey_bytes: tuple[int, int]
    redis7_bytes: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PlanReport:
    """All of it."""

    model: str
    model_type: str
    max_tokens: int
    kv_dtype: str
    block_size: int
    load: Load
    weights: WeightsReport
    kv: KvCost
    conversation_bytes: int
    """Of one request at its whole context."""
    ratio: Ratio
    reservation: Reservation
    fit: Fit | None
    """None where no memory was named."""
    index: IndexReport | None
    tenants: tuple[TenantPart, ...]
    decode: tuple[DecodeStep, ...]
    break_even: BreakEven


def plan(model: ModelShape, question: Question) -> PlanReport:
    """Raises InvalidRequestError for a load that the model cannot have, PreconditionError for impossible quotas."""
    load = question.load
    _check(model, load)
    found = fit(model, load, question.memory_bytes, question.reserve_bytes) if question.memory_bytes else None
    num_blocks = found.pool.num_blocks if found else 0
    return PlanReport(
        model=model.name,
        model_type=model.model_type,
        max_tokens=model.max_tokens,
        kv_dtype=str(model.kv_dtype),
        block_size=model.block_size,
        load=load,
        weights=_weights(model),
        kv=kv_cost(model),
        conversation_bytes=conversation_bytes(model, load.context),
        ratio=_ratio(model, load),
        reservation=reservation(model, load),
        fit=found,
        index=_index(num_blocks) if found else None,
        tenants=tenant_parts(question.tenants, load, num_blocks, model.block_size) if found else (),
        decode=tuple(
            decode_step(model, question.device, context, number)
            for number in sorted({1, load.num_requests})
            for context in question.contexts
        ),
        break_even=break_even(model, question.device, load.context),
    )


def _check(model: ModelShape, load: Load) -> None:
    if model.max_tokens and load.context > model.max_tokens:
        raise InvalidRequestError(
            "context",
            f"{load.context:,} tokens of context, but {model.name} knows {model.max_tokens:,} "
            "(max_position_embeddings of its config.json); ask for at most that",
        )
    if load.used > load.context or load.shared_prefix > load.context:
        raise InvalidRequestError(
            "context", f"tokens in use and in a shared prefix are among the {load.context:,} of the context; lower them"
        )


def _weights(model: ModelShape) -> WeightsReport:
    weights = model.weights
    return WeightsReport(
        source=str(weights.source),
        dtype=f"{model.dtype}, quantised" if model.has_quantised_weights else str(model.dtype),
        is_quantised=model.has_quantised_weights,
        num_weights=weights.count.total,
        num_active=weights.count.active,
        total_bytes=weights.total_bytes,
        step_bytes=int(weights.step_bytes(1)),
    )


def _ratio(model: ModelShape, load: Load) -> Ratio:
    kv_bytes = load.num_requests * conversation_bytes(model, load.context)
    cost, weights = kv_cost(model), model.weights.total_bytes
    tokens = (weights - cost.fixed_bytes) // cost.bytes_per_token if cost.bytes_per_token else 0
    return Ratio(kv_bytes, kv_bytes / weights, max(0, tokens))


def _index(num_blocks: int) -> IndexReport:
    low, high = VALKEY_BYTES
    low7, high7 = REDIS7_BYTES
    return IndexReport(
        num_blocks,
        (int(low * num_blocks), int(high * num_blocks)),
        (int(low7 * num_blocks), int(high7 * num_blocks)),
    )
