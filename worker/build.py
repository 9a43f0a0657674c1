"""The one place that chooses what a worker is made of: its runner and its stores. Keeps nothing."""

from __future__ import annotations

import time
from dataclasses import replace

from cache_store.index import IndexUnavailableError
from cache_store.kv_layout import KvDtype
from cache_store.meter_store import MeterSpace
from cache_store.redis_index import RedisIndexWriter
from cache_store.redis_meter import RedisMeterStore
from cache_store.redis_quotas import RedisQuotas
from cache_store.redis_registry import RedisRegistryWriter
from cache_store.redis_session import REDIS_ERRORS, RedisSession
from cache_store.redis_sweep import sweep_dead
from worker.block_copier import BlockCopier
from worker.build_tiers import build_tiers, sizes_of
from worker.config import KvChoice, Numerics, RunnerKind, WorkerConfig
from worker.digest_runner import DigestRunner, Durations, digest_model
from worker.publisher import Stores
from worker.runner import Runner
from worker.slow_copier import SlowCopier

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
    """Index, registry, published quotas and usage in Redis. Connects at the first call, so Redis may be away."""
    session = RedisSession(config.redis_url)

    async def sweep() -> None:
        try:
            await sweep_dead(session)
        except REDIS_ERRORS as error:
            raise IndexUnavailableError(str(error)) from error

    quotas, meter = RedisQuotas(session), RedisMeterStore(session, MeterSpace.BLOCKS)
    return Stores(RedisIndexWriter(session), RedisRegistryWriter(session), quotas, sweep, session.close, meter)


def _build_paged(config: WorkerConfig) -> Runner:
    from worker.torch_runner.attention_choice import choose_attention  # imports torch
    from worker.torch_runner.deterministic import deterministic_attention, torch_threads
    from worker.torch_runner.loader import load_model, with_kv_dtype
    from worker.torch_runner.paged import MakeGraphs, PagedRunner
    from worker.torch_runner.triton_choice import blocks_maker, graphs_maker

    assert config.model_folder is not None, "checked by WorkerConfig"
    threads = config.torch_threads
    model = load_model(
        config.model_folder, config.cache_dir, config.device, name=config.model_name, num_threads=threads
    )
    if config.kv_dtype is not KvChoice.AUTO:
        model = with_kv_dtype(model, KvDtype(config.kv_dtype.value))
    geometry = model.geometry(BLOCK_SIZE)
    sizes = sizes_of(config, geometry)
    tolerance: float | None = None
    graphs: MakeGraphs | None = None
    if config.numerics is Numerics.DETERMINISTIC:
        attention = deterministic_attention(model, threads, config.cache_dir)
        threads = torch_threads(model, threads)
        tolerance = 0.0  # what is computed again has the same bits; recorded steps are not what was tried
    else:
        attention = choose_attention(config.attention_backend, model, threads, config.cache_dir)
        graphs = graphs_maker(attention, model.device, config.max_num_sequences)
    tiers = build_tiers(config, geometry.bytes_per_block)
    return PagedRunner(
        model,
        sizes.num_blocks,
        attention,
        BLOCK_SIZE,
        num_threads=threads,
        num_host_blocks=tiers.num_host_blocks,
        make_mover=tiers.make_mover,
        make_blocks=blocks_maker(attention),
        make_graphs=graphs,
        num_slots=sizes.num_slots,
        tolerance=tolerance,
    )


def _build_digest(config: WorkerConfig) -> Runner:
    model = replace(digest_model(), name=config.model_name)
    num_blocks = sizes_of(config, model.geometry).num_blocks
    durations = Durations(
        config.digest_step_s, config.digest_token_s, config.digest_load_block_s, config.digest_disk_block_s
    )

    def slowed(copier: BlockCopier) -> BlockCopier:
        return SlowCopier(copier, durations.load_block_s, durations.disk_block_s, time.sleep)

    tiers = build_tiers(config, model.geometry.bytes_per_block, slowed)
    return DigestRunner(model, num_blocks, durations, time.sleep, tiers.num_host_blocks, tiers.make_mover)
