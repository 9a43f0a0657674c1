"""Host and disk caches that do not fit, or that lack one another, are refused with the numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cache_store.errors import PreconditionError
from services.cluster.memory import BASE_BYTES, MIB, PROCESS_BYTES
from services.cluster.tier_room import (
    NO_LOWER_TIERS,
    LowerTierOptions,
    check_combination,
    check_disk_room,
    check_host_room,
    check_pool_room,
)

EVERYTHING_ELSE = BASE_BYTES + 2 * (PROCESS_BYTES + 500 * MIB + 64 * MIB)


@pytest.mark.parametrize(
    ("tiers", "words"),
    [
        (LowerTierOptions(disk_bytes=1), "add --host-cache"),
        (LowerTierOptions(host_bytes=1, folder=Path("/d")), "add --disk-cache"),
    ],
)
def test_an_option_that_lacks_another_is_refused(tiers: LowerTierOptions, words: str) -> None:
    with pytest.raises(PreconditionError, match=words):
        check_combination(tiers)


def test_whole_combinations_are_taken() -> None:
    check_combination(NO_LOWER_TIERS)
    check_combination(LowerTierOptions(host_bytes=1))
    check_combination(LowerTierOptions(1, 1, Path("/d")))


def test_memory_that_is_there_is_enough_to_the_last_byte() -> None:
    check_host_room(300 * MIB, 2, 500 * MIB, 64 * MIB, EVERYTHING_ELSE + 2 * 300 * MIB)
    with pytest.raises(PreconditionError, match=r"--host-cache: 2 workers with 300 MiB .* up to 299 MiB would fit"):
        check_host_room(300 * MIB, 2, 500 * MIB, 64 * MIB, EVERYTHING_ELSE + 2 * 300 * MIB - 1)


def test_where_there_is_no_room_at_all_none_would_fit() -> None:
    with pytest.raises(PreconditionError, match=r"none would fit"):
        check_host_room(300 * MIB, 2, 500 * MIB, 64 * MIB, EVERYTHING_ELSE)


def test_what_is_no_folder_of_ours_holds_no_blocks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(PreconditionError, match=r"file cannot be written to.*--disk-folder"):
            check_disk_room(1, 1, path)


def test_a_disk_is_asked_where_the_blocks_will_lie(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    check_disk_room(free // 4, 2, tmp_path / "not" / "yet" / "there")
    with pytest.raises(PreconditionError, match=r"--disk-cache: 2 workers .* another place: --disk-folder"):
        check_disk_room(free, 2, tmp_path / "not" / "yet" / "there")


def test_a_pool_that_was_asked_for_must_fit_beside_everything_else() -> None:
    check_pool_room(64 * MIB, 2, 500 * MIB, EVERYTHING_ELSE)
    with pytest.raises(PreconditionError, match=r"too little memory for --kv-mib 64: .* --kv-mib 63 would fit"):
        check_pool_room(64 * MIB, 2, 500 * MIB, EVERYTHING_ELSE - 1)
    with pytest.raises(PreconditionError, match=r"take fewer workers"):
        check_pool_room(64 * MIB, 2, 500 * MIB, BASE_BYTES)
