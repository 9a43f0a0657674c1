"""The one place that chooses what a worker is made of: its runner and its stores. Keeps nothing."""

from __future__ import annotations

import time

from cache_store.errors import InvalidRequestError
from worker.config import KvBytes, PoolSize, RunnerKind, WorkerConfig
from worker.digest_runner import DigestRunner, Durations, digest_model
from worker.runner import Runner


def build_runner(config: WorkerConfig) -> Runner:
    """Loads the model and allocates its pool: seconds to minutes, so never on an event loop.

    Raises InvalidRequestError, which names what is wrong with the model folder or with the size of the pool.
    """
    if config.runner is RunnerKind.PAGED:
        raise InvalidRequestError("runner", "this build has no paged runner; the digest runner works")
    model = digest_model()
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
