"""The one place that chooses what a worker is made of: its runner and its stores. Keeps nothing."""

from __future__ import annotations

import time
from dataclasses import replace

from cache_store.errors import InvalidRequestError
from cache_store.index import IndexUnavailableError
from cache_store.redis_index import RedisIndexWriter
from cache_store.redis_quotas import RedisQuotas
from cache_store.redis_registry import RedisRegistryWriter
from cache_store.redis_session import REDIS_ERRORS, RedisSession
from cache_store.redis_sweep import sweep_dead
from worker.config import KvBytes, PoolSize, RunnerKind, WorkerConfig
from worker.digest_runner import DigestRunner, Durations, digest_model
from worker.publisher import Stores
from worker.runner import Runner

BLOCK_SIZE = 16
"""Tokens per block of the paged runner."""


def build_runner(config: WorkerConfig) -> Runner:
    """Loads the model and allocates its pool: seconds to minutes, so never on an event loop.

    Raises InvalidRequestError, which names what is wrong with the model folder or with the size of the pool.
    """
    if config.runner is RunnerKind.PAGED:
        return _build_paged(config)
    return _build_digest(config)


def connect_stores(config: WorkerConfig) -> Stores:
    """Index, registry and published quotas in Redis. Connects at the first call, so Redis may be away."""
    session = RedisSession(config.redis_url)

    async def sweep() -> None:
        try:
            await sweep_dead(session)
        except REDIS_ERRORS as error:
            raise IndexUnavailableError(str(error)) from error

    quotas = RedisQuotas(session)
    return Stores(RedisIndexWriter(session), RedisRegistryWriter(session), quotas, sweep, session.close)


def _build_paged(config: WorkerConfig) -> Runner:
    from worker.torch_runner.fastest import fastest_attention  # imports torch
    from worker.torch_runner.loader import load_model
    from worker.torch_runner.paged import PagedRunner

    assert config.model_folder is not None, "checked by WorkerConfig"
    model = load_model(config.model_folder, config.cache_dir, config.device, name=config.model_name)
    num_blocks = num_blocks_of(config.pool, model.geometry(BLOCK_SIZE).bytes_per_block)
    attention = fastest_attention(model, config.torch_threads, config.cache_dir)
    return PagedRunner(model, num_blocks, attention, BLOCK_SIZE, num_threads=config.torch_threads)


def _build_digest(config: WorkerConfig) -> Runner:
    model = replace(digest_model(), name=config.model_name)
    num_blocks = num_blocks_of(config.pool, model.geometry.bytes_per_block)
    return DigestRunner(model, num_blocks, Durations(config.digest_step_s, config.digest_token_s), time.sleep)


def num_blocks_of(pool: PoolSize, bytes_per_block: int) -> int:
    """Blocks of a pool. Raises InvalidRequestError where not even one fits."""
    if not isinstance(pool, KvBytes):
        return pool.count
    if pool.size_bytes < bytes_per_block:
        raise InvalidRequestError(
            "pool", f"{pool.size_bytes} bytes hold no block; one block of this model takes {bytes_per_block} bytes"
        )
    return pool.size_bytes // bytes_per_block
