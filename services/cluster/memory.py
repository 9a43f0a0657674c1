"""How many bytes of KV pool a worker on this machine gets. Reads the machine's figures, decides nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cache_store.errors import PreconditionError

MIB = 1 << 20
POOL_CAP_BYTES = 1024 * MIB
POOL_FLOOR_BYTES = 64 * MIB
PROCESS_BYTES = 700 * MIB
"""Interpreter, libraries and activations of one CPU worker, beside weights and pool."""
BASE_BYTES = 1024 * MIB
"""Left to Ray, Redis, the router and the rest of the machine."""
DIGEST_POOL_BYTES = 4 * MIB
"""A runner without tensors pays nothing for its pool."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of the workers of one machine."""

    num_workers: int
    weights_bytes: int
    available_bytes: int
    pool_bytes: int
    """KV pool of each worker."""


def plan_memory(num_workers: int, weights_bytes: int, available_bytes: int) -> MemoryPlan:
    """Shares what is available; each pool has at most POOL_CAP_BYTES. Raises PreconditionError with the numbers."""
    room = (available_bytes - BASE_BYTES) // num_workers - PROCESS_BYTES - weights_bytes
    if room < POOL_FLOOR_BYTES:
        needed = num_workers * (PROCESS_BYTES + weights_bytes + POOL_FLOOR_BYTES) + BASE_BYTES
        raise PreconditionError(
            f"too little memory: {num_workers} workers with {weights_bytes // MIB} MiB of weights each need about "
            f"{needed // MIB} MiB, {available_bytes // MIB} MiB are free; start fewer (--workers) or a smaller model"
        )
    return MemoryPlan(num_workers, weights_bytes, available_bytes, min(POOL_CAP_BYTES, room))


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that processes can still take: the machine's, or less where a container has a limit."""
    free = _field(meminfo, "MemAvailable:") * 1024
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii")) - _field(
            cgroup / "memory.stat", "inactive_file"
        )
    except (OSError, ValueError):  # no cgroup v2 here
        return free
    # File cache counts as used, but the kernel gives it back when asked: `inactive_file` was taken off above.
    return free if limit == "max" else min(free, max(0, int(limit) - used))


def _field(path: Path, name: str) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        key, *values = line.split()
        if key == name:
            return int(values[0])
    raise ValueError(f"{path} has no {name}")


def weights_bytes(model: Path) -> int:
    """Bytes of the weights of a model folder."""
    return sum(path.stat().st_size for path in model.glob("*.safetensors"))
