"""`stemcache loadtest` against a real `stemcache up`, as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.loadtest.conditions import CacheState
from services.loadtest.results_folder import read_conditions, read_run, read_sweep
from tests.support.running_up import RunningUp, start_up, wait_until

pytestmark = pytest.mark.slow

SMALL = ["--prefix-len", "64", "--suffix-len", "16", "--output-len", "4", "--num-warmups", "2"]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    running = start_up(tmp_path_factory.mktemp("up") / "data", "--runner", "digest")
    yield running
    assert running.stop() == 0, running.output()


def tenants(up: RunningUp) -> str:
    return up.run("tenants", "list", "--json").stdout


def test_two_tenants_and_a_noisy_one(up: RunningUp, tmp_path: Path) -> None:
    before = tenants(up)
    flags = ["--tenants", "2", "--noisy-neighbour", "2", "--num-prompts", "12", "--request-rate", "20"]
    found = up.run("loadtest", "run", *flags, *SMALL, "--result-dir", str(tmp_path / "run"))
    assert found.returncode == 0, found.stderr
    assert "Prefix Cache" in found.stdout
    run = read_run(tmp_path / "run")
    assert run.result.status_codes == {"OK": 36}
    assert set(run.result.tenants) == {"loadtest-1", "loadtest-2", "noisy"}
    for name in ("loadtest-1", "loadtest-2"):
        group = run.result.tenants[name]
        assert 0 < group.cached_tokens <= group.cacheable_tokens
    assert run.result.tenants["noisy"].cached_tokens == 0
    assert run.result.prefix_cache.server_delta["cached_tokens"] == run.result.prefix_cache.cached_tokens
    assert run.samples
    assert {each.tenant for sample in run.samples for worker in sample.workers for each in worker.tenants} <= {
        "loadtest-1",
        "loadtest-2",
        "noisy",
    }
    conditions = read_conditions(tmp_path / "run")
    assert conditions.cache_state is CacheState.PRIMED
    assert len(conditions.workers) == 2
    assert conditions.model.block_size == 16
    assert tenants(up) == before
    again = up.run("loadtest", "run", *flags, *SMALL, "--result-dir", str(tmp_path / "run"))
    assert (again.returncode, "holds a run" in again.stderr) == (1, True)


def test_a_sweep_has_a_folder_per_point(up: RunningUp, tmp_path: Path) -> None:
    flags = ["--max-concurrencies", "1,4", "--num-prompts", "10", "--result-dir", str(tmp_path / "sweep")]
    found = up.run("loadtest", "sweep", *flags, *SMALL)
    assert found.returncode == 0, found.stderr
    points = read_sweep(tmp_path / "sweep").points
    assert [point.max_concurrency for point in points] == [1, 4]
    runs = [read_run(tmp_path / "sweep" / point.folder) for point in points]
    assert [run.result.completed for run in runs] == [10, 10]
    assert runs[0].conditions.partition != runs[1].conditions.partition


def test_ctrl_c_still_writes_everything(up: RunningUp, tmp_path: Path) -> None:
    before = tenants(up)
    flags = ["--duration", "10m", "--max-concurrency", "2", "--result-dir", str(tmp_path / "run")]
    command = [sys.executable, "-m", "services.cli", "loadtest", "run", *flags, *SMALL, "--data-dir", str(up.data_dir)]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=dict(os.environ))
    wait_until(lambda: "measuring" in log.read_text() or process.poll() is not None)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130, log.read_text()
    run = read_run(tmp_path / "run")
    assert run.result.interrupted
    assert run.result.completed > 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["request_rate"] == "inf"
    assert tenants(up) == before
