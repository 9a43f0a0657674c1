"""Do the tiers below the device fit on this machine. Reads free memory and disk, decides nothing else."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from cache_store.errors import PreconditionError
from services.cluster.memory import BASE_BYTES, MIB, PROCESS_BYTES


@dataclass(frozen=True, slots=True)
class LowerTierOptions:
    """What each worker is to have below its device."""

    host_bytes: int | None = None
    """None: nothing."""
    disk_bytes: int | None = None
    folder: Path | None = None
    """Of the disk's blocks; None: in the data folder."""


NO_LOWER_TIERS = LowerTierOptions()


def check_combination(tiers: LowerTierOptions) -> None:
    """Raises PreconditionError where one option lacks another."""
    if tiers.disk_bytes is not None and tiers.host_bytes is None:
        raise PreconditionError("blocks reach the disk by way of the host's memory: add --host-cache to --disk-cache")
    if tiers.folder is not None and tiers.disk_bytes is None:
        raise PreconditionError("--disk-folder is where the blocks of a disk cache lie: add --disk-cache")


def check_host_room(host_bytes: int, num_workers: int, weights_bytes: int, kv_bytes: int, available: int) -> None:
    """Raises PreconditionError where the workers' memory is not free, with `kv_bytes` of pool each."""
    needed = _needed_bytes(num_workers, weights_bytes, kv_bytes + host_bytes)
    if needed > available:
        room = (available - needed) // num_workers + host_bytes
        fits = f"up to {room // MIB} MiB would fit" if room >= MIB else "none would fit"
        raise PreconditionError(
            f"too little memory for --host-cache: {num_workers} workers with {host_bytes // MIB} MiB of it each need "
            f"{_against(needed, available)}; {fits}"
        )


def check_pool_room(kv_bytes: int, num_workers: int, weights_bytes: int, available: int) -> None:
    """Raises PreconditionError where the memory of the workers' pools, of `kv_bytes` each, is not free."""
    needed = _needed_bytes(num_workers, weights_bytes, kv_bytes)
    if needed > available:
        room = (available - needed) // num_workers + kv_bytes
        fits = f"--kv-mib {room // MIB} would fit" if room >= MIB else "take fewer workers: --workers"
        raise PreconditionError(
            f"too little memory for --kv-mib {kv_bytes // MIB}: {num_workers} workers need "
            f"{_against(needed, available)}; {fits}"
        )


def _needed_bytes(num_workers: int, weights_bytes: int, cache_bytes: int) -> int:
    return BASE_BYTES + num_workers * (PROCESS_BYTES + weights_bytes + cache_bytes)


def _against(needed: int, available: int) -> str:
    return f"about {needed // MIB} MiB with everything else, {available // MIB} MiB are free"


def check_disk_room(disk_bytes: int, num_workers: int, folder: Path) -> None:
    """Raises PreconditionError where `folder` cannot be made or used, or the blocks of all workers would not fit."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise PreconditionError(f"{existing} cannot be written to as a folder; take another place: --disk-folder")
    free = shutil.disk_usage(existing).free
    if num_workers * disk_bytes > free:
        raise PreconditionError(
            f"too little room for --disk-cache: {num_workers} workers with {disk_bytes // MIB} MiB each, "
            f"{free // MIB} MiB are free in {existing}; take less, or another place: --disk-folder"
        )
