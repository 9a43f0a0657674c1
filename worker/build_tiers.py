"""What a worker has below its device, made out of its configuration. Keeps nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cache_store.block_files import BlockFiles
from cache_store.clock import SystemClock
from cache_store.errors import InvalidRequestError, PreconditionError
from worker.block_copier import BlockCopier
from worker.config import KvBytes, PoolSize, WorkerConfig
from worker.disk_folder import DiskFolder
from worker.mover import MakeMover, Mover
from worker.transfers import BackgroundTransfers, DiskTier


@dataclass(frozen=True, slots=True)
class TierParts:
    """What a runner is given for its lower tiers."""

    num_host_blocks: int
    make_mover: MakeMover | None
    """None: it has a device only."""


_FLAGS = {"pool": "--kv-mib", "host_pool": "--host-cache", "disk_pool": "--disk-cache"}
"""How `stemcache up` calls the sizes of pools."""


def build_tiers(
    config: WorkerConfig, block_bytes: int, wrap: Callable[[BlockCopier], BlockCopier] = lambda copier: copier
) -> TierParts:
    """`wrap` goes around the copier of the runner's pools.

    Raises InvalidRequestError for pools that hold no block or do not fit on the disk. The lock on the disk's folder is
    taken when the runner is made: PreconditionError then.
    """
    if config.host_pool is None:
        return TierParts(0, None)
    num_disk_blocks = 0 if config.disk_pool is None else num_blocks_of(config.disk_pool, block_bytes, "disk_pool")

    def make(copier: BlockCopier) -> Mover:
        disk = _open_disk(config, num_disk_blocks, block_bytes) if num_disk_blocks else None
        return BackgroundTransfers(wrap(copier), disk, SystemClock())

    return TierParts(num_blocks_of(config.host_pool, block_bytes, "host_pool"), make)


def num_blocks_of(pool: PoolSize, block_bytes: int, name: str = "pool") -> int:
    """Blocks of a pool. Raises InvalidRequestError where not even one fits."""
    if not isinstance(pool, KvBytes):
        return pool.count
    if pool.size_bytes < block_bytes:
        raise InvalidRequestError(
            name,
            f"{pool.size_bytes} bytes hold no block; one block of this model takes {block_bytes} bytes: take more with "
            f"{_FLAGS[name]}",
        )
    return pool.size_bytes // block_bytes


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
