"""How pools are sized."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_store.errors import PreconditionError
from services.cluster.memory import (
    BASE_BYTES,
    MIB,
    POOL_CAP_BYTES,
    POOL_FLOOR_BYTES,
    PROCESS_BYTES,
    available_bytes,
    plan_memory,
)


def test_a_large_machine_gives_the_cap() -> None:
    assert plan_memory(2, 500 * MIB, 64 * 1024 * MIB).pool_bytes == POOL_CAP_BYTES


def test_a_small_machine_shares_what_is_left() -> None:
    available = BASE_BYTES + 2 * (PROCESS_BYTES + 500 * MIB + 200 * MIB)
    assert plan_memory(2, 500 * MIB, available).pool_bytes == 200 * MIB


def test_too_little_memory_is_refused_with_the_numbers() -> None:
    available = BASE_BYTES + 2 * (PROCESS_BYTES + 500 * MIB + POOL_FLOOR_BYTES) - 2
    with pytest.raises(PreconditionError, match=r"too little memory: 2 workers .* 3551 MiB are free; .*--workers"):
        plan_memory(2, 500 * MIB, available)


def _meminfo(folder: Path) -> Path:
    path = folder / "meminfo"
    path.write_text("MemTotal:       9000 kB\nMemAvailable:   8000 kB\n")
    return path


def _cgroup(folder: Path, limit: str) -> Path:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text("3000000\n")
    (folder / "memory.stat").write_text("anon 1\ninactive_file 1000000\n")
    return folder


def test_available_is_the_machines_without_a_limit(tmp_path: Path) -> None:
    assert available_bytes(_meminfo(tmp_path), _cgroup(tmp_path, "max")) == 8000 * 1024
    assert available_bytes(_meminfo(tmp_path), tmp_path / "absent") == 8000 * 1024


def test_available_is_what_a_containers_limit_leaves(tmp_path: Path) -> None:
    assert available_bytes(_meminfo(tmp_path), _cgroup(tmp_path, "5000000")) == 3_000_000
