"""How many blocks and conversations a pool holds, as a worker lays it out. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cache_store.planning.model_shape import ModelShape
from cache_store.pool_sizes import PoolSizes, StepLimits, pool_sizes, pool_sizes_within

USUAL_LIMITS = StepLimits(num_sequences=64, num_step_tokens=512)
"""Of workers that are told nothing else."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is to run at once."""

    num_requests: int
    context: int
    """Tokens of each, prompt and answer."""
    used: int
    """Tokens that one has really got when it ends, on average; no more than `context`."""
    shared_prefix: int
    """Leading tokens that all of them have in common."""

    @property
    def limits(self) -> StepLimits:
        """Of a worker that runs all of them at once: the usual ones, or more sequences."""
        return replace(USUAL_LIMITS, num_sequences=max(USUAL_LIMITS.num_sequences, self.num_requests))


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """A worker's pool of keys and values."""

    size_bytes: int
    """Of all groups, as allocated; no more than there is room for."""
    block_size: int
    num_blocks: int
    num_slots: tuple[int, ...]
    """Of each group: fewer than blocks where layers slide."""

    @property
    def num_tokens(self) -> int:
        """That it holds."""
        return self.num_blocks * self.block_size


def plan_pool(model: ModelShape, room_bytes: int, load: Load) -> PoolPlan:
    """What a worker allocates that is given so many bytes; no blocks where not even one fits."""
    geometry = model.geometry
    sizes = pool_sizes_within(geometry, room_bytes, load.limits) if room_bytes > 0 else None
    if sizes is None:
        sizes = PoolSizes(0, (0,) * len(geometry.groups))
    return PoolPlan(sizes.size_bytes(geometry), model.block_size, sizes.num_blocks, sizes.num_slots)


def pool_bytes_for(model: ModelShape, num_blocks: int, load: Load) -> int:
    """Bytes of a pool of so many blocks."""
    return pool_sizes(model.geometry, num_blocks, load.limits).size_bytes(model.geometry)


def blocks_needed(load: Load, block_size: int, num_requests: int) -> int:
    """Blocks that so many of its requests hold at once: full ones of the shared prefix once, the rest each."""
    shared = load.shared_prefix // block_size if num_requests > 1 else 0
    return shared + num_requests * (-(-load.context // block_size) - shared)


def requests_that_fit(load: Load, block_size: int, num_blocks: int) -> int:
    """Requests that have their whole context in so many blocks."""
    shared = load.shared_prefix // block_size
    each = -(-load.context // block_size) - shared
    if num_blocks < shared + each:
        return 0
    return (num_blocks - shared) // each if each else num_blocks


def longest_context(load: Load, block_size: int, num_blocks: int) -> int:
    """Tokens that each of its requests may have so that all of them fit."""
    shared = min(load.shared_prefix // block_size, num_blocks)
    own = (num_blocks - shared) // load.num_requests
    return (shared + own) * block_size


@dataclass(frozen=True, slots=True)
class Reservation:
    """A cache that reserves the whole context of each request ahead, beside blocks."""

    reserved_bytes: int
    used_bytes: int
    idle_bytes: int
    paged_bytes: int
    """Blocks for the tokens that are used."""
    paged_idle_bytes: int
    """Of those the part that no token is in."""


def reservation(model: ModelShape, load: Load) -> Reservation:
    """For its requests, with all layers as they would be kept without windows in the contiguous cache."""
    per_token = sum(map(model.bytes_per_token, model.groups))
    reserved = load.num_requests * load.context * per_token
    used = load.num_requests * load.used * per_token
    paged = load.num_requests * -(-load.used // model.block_size) * model.geometry.bytes_per_block
    return Reservation(reserved, used, reserved - used, paged, paged - used)
