"""The block pool of an engine, made to its runner and configuration. Keeps nothing."""

from __future__ import annotations

from cache_store.block_pool import BlockPool
from cache_store.clock import Clock
from cache_store.digest import Hasher
from cache_store.policies.choice import policy_maker
from cache_store.pool_sizes import PoolSizes, StepLimits, window_sizes
from cache_store.reuse_curves import USUAL_ROOM
from cache_store.shadow import WatchRules
from cache_store.tier_kind import TierSizes
from worker.engine_config import EngineConfig
from worker.runner import Runner

RULES = WatchRules(curve_room=USUAL_ROOM)


def make_pool(runner: Runner, config: EngineConfig, clock: Clock, hasher: Hasher) -> BlockPool:
    """A pool with the runner's blocks, on all tiers that it has."""
    geometry = runner.info.geometry
    limits = StepLimits(config.num_max_sequences, config.num_step_tokens)
    return BlockPool(
        geometry,
        runner.num_blocks,
        clock,
        hasher,
        policy_maker(config.eviction_policy),
        RULES,
        sizes=TierSizes(runner.transfers.num_host_blocks, runner.transfers.num_disk_blocks),
        windows=window_sizes(geometry, PoolSizes(runner.num_blocks, runner.num_slots), limits),
    )
