"""How large a worker's pools are and what it has below its device, out of its configuration. Keeps nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cache_store.block_files import BlockFiles
from cache_store.clock import SystemClock
from cache_store.errors import InvalidRequestError, PreconditionError
from cache_store.groups import CacheGeometry
from cache_store.pool_sizes import PoolSizes, StepLimits, pool_sizes, pool_sizes_within
from worker.block_copier import BlockCopier
from worker.config import KvBytes, PoolSize, WorkerConfig
from worker.disk_folder import DiskFolder
from worker.mover import MakeMover, Mover
from worker.transfers import BackgroundTransfers, DiskTier


@dataclass(frozen=True, slots=True)
class TierParts:
    """What a runner is given for its lower tiers, and for blocks of other workers."""

    num_host_blocks: int
    make_mover: MakeMover


_FLAGS = {"pool": "--kv-mib", "host_pool": "--host-cache", "disk_pool": "--disk-cache"}
"""How `stemcache up` calls the sizes of pools."""


def build_tiers(
    config: WorkerConfig, block_bytes: int, wrap: Callable[[BlockCopier], BlockCopier] = lambda copier: copier
) -> TierParts:
    """`wrap` goes around the copier of the runner's pools.

    Raises InvalidRequestError for pools that hold no block or do not fit on the disk. The lock on the disk's folder is
    taken when the runner is made: PreconditionError then.
    """
    num_host_blocks = 0 if config.host_pool is None else num_blocks_of(config.host_pool, block_bytes, "host_pool")
    num_disk_blocks = 0 if config.disk_pool is None else num_blocks_of(config.disk_pool, block_bytes, "disk_pool")

    def make(copier: BlockCopier) -> Mover:
        disk = _open_disk(config, num_disk_blocks, block_bytes) if num_disk_blocks else None
        return BackgroundTransfers(wrap(copier), disk, SystemClock())

    return TierParts(num_host_blocks, make)


def sizes_of(config: WorkerConfig, geometry: CacheGeometry) -> PoolSizes:
    """What the runner allocates. Raises InvalidRequestError where not even one block fits."""
    limits = StepLimits(config.max_num_sequences, config.token_budget)
    if not isinstance(config.pool, KvBytes):
        return pool_sizes(geometry, config.pool.count, limits)
    sizes = pool_sizes_within(geometry, config.pool.size_bytes, limits)
    if sizes is None:
        raise _no_block("pool", config.pool.size_bytes, geometry.bytes_per_block)
    return sizes


def num_blocks_of(pool: PoolSize, block_bytes: int, name: str = "pool") -> int:
    """Blocks of a pool of whole blocks. Raises InvalidRequestError where not even one fits."""
    if not isinstance(pool, KvBytes):
        return pool.count
    if pool.size_bytes < block_bytes:
        raise _no_block(name, pool.size_bytes, block_bytes)
    return pool.size_bytes // block_bytes


def _no_block(name: str, size_bytes: int, block_bytes: int) -> InvalidRequestError:
    return InvalidRequestError(
        name,
        f"{size_bytes} bytes hold no block; one block of this model takes {block_bytes} bytes: take more with "
        f"{_FLAGS[name]}",
    )


def _open_disk(config: WorkerConfig, num_blocks: int, block_bytes: int) -> DiskTier:
    assert config.disk_folder is not None, "checked by WorkerConfig"
    folder = DiskFolder.take(config.disk_folder, config.worker_id)
    try:
        _check_room(folder.path.parent, num_blocks * block_bytes)
        files = BlockFiles(folder.path, block_bytes, num_blocks)
    except OSError as error:
        folder.release()
        raise PreconditionError(f"{folder.path} cannot be used for blocks on disk: {error.strerror}") from error
    except BaseException:
        folder.release()
        raise

    def close() -> None:
        try:
            files.close()
        finally:
            folder.release()

    return DiskTier(files, num_blocks, close)


def _check_room(folder: Path, size_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if size_bytes > free_bytes:
        raise InvalidRequestError(
            "disk_pool",
            f"{size_bytes >> 20} MiB of blocks do not fit on the disk of {folder}, where {free_bytes >> 20} MiB are "
            "free; take a smaller disk_pool or another disk_folder",
        )
