"""Lower tiers out of a worker's configuration, with real files; what does not fit is named."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cache_store.domain import TenantId
from cache_store.errors import InvalidRequestError, PreconditionError
from cache_store.transfers import HostStore, Load, Moves, TransferId
from tests.support.transfer_plans import block_name, moving, spill
from tests.support.worker_host import digest_config
from worker.build import build_runner
from worker.config import KvBytes, NumBlocks
from worker.runner import Runner

BLOCK_BYTES = 16 * 24
"""Of the token-digest model."""


def outcomes(runner: Runner, num: int) -> dict[int, bool]:
    found: dict[int, bool] = {}
    give_up_s = time.monotonic() + 20
    while len(found) < num:
        found |= {result.id: result.ok for result in runner.transfers.finished()}
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    return found


def test_a_worker_has_no_lower_tier_unless_told() -> None:
    runner = build_runner(digest_config())
    assert (runner.transfers.num_host_blocks, runner.transfers.num_disk_blocks) == (0, 0)


def test_sizes_in_blocks_and_in_bytes(tmp_path: Path) -> None:
    config = digest_config(host_pool=NumBlocks(5), disk_pool=KvBytes(7 * BLOCK_BYTES + 1), disk_folder=tmp_path)
    runner = build_runner(config)
    assert (runner.transfers.num_host_blocks, runner.transfers.num_disk_blocks) == (5, 7)
    runner.transfers.close()
    assert not list((tmp_path / config.worker_id).glob("*/*"))


def test_blocks_go_through_both_tiers_and_nothing_stays(tmp_path: Path) -> None:
    config = digest_config(host_pool=NumBlocks(2), disk_pool=NumBlocks(2), disk_folder=tmp_path)
    runner = build_runner(config)
    name = block_name(1, block_size=16)
    runner.run(moving(Moves(stores=(HostStore((0,), 0),))))
    runner.run(moving(Moves(spills=(spill(1, 0, name),))))
    assert outcomes(runner, 1) == {1: True}
    runner.run(moving(Moves(), Load(TransferId(2), TenantId("acme"), name, None, (3,))))
    assert outcomes(runner, 1) == {2: True}
    with pytest.raises(PreconditionError, match="another process keeps blocks"):
        build_runner(config)
    runner.transfers.close()
    build_runner(config).transfers.close()
    assert [path.name for path in (tmp_path / config.worker_id).iterdir()] == ["lock"]


def test_a_disk_that_is_too_small_is_named(tmp_path: Path) -> None:
    config = digest_config(host_pool=NumBlocks(1), disk_pool=KvBytes(1 << 60), disk_folder=tmp_path)
    with pytest.raises(InvalidRequestError, match=r"do not fit on the disk .* are free") as raised:
        build_runner(config)
    assert raised.value.field == "disk_pool"
    build_runner(digest_config(host_pool=NumBlocks(1), disk_pool=NumBlocks(1), disk_folder=tmp_path)).transfers.close()


@pytest.mark.parametrize(("name", "flag"), [("host_pool", "--host-cache"), ("disk_pool", "--disk-cache")])
def test_a_pool_that_holds_no_block_is_named(tmp_path: Path, name: str, flag: str) -> None:
    pools = {"host_pool": NumBlocks(1), "disk_pool": NumBlocks(1), name: KvBytes(BLOCK_BYTES - 1)}
    with pytest.raises(InvalidRequestError, match=f"hold no block.*{flag}") as raised:
        build_runner(digest_config(disk_folder=tmp_path, **pools))
    assert raised.value.field == name
