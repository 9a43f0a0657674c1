"""The isolation test and what answers tell, on the real model: a `stemcache up` without further flags."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cache_store import fence
from services.cli.exit_codes import ExitCode
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from services.loadtest.isolation.power import ROUGH_LIMIT
from services.loadtest.isolation.record import read_isolation
from services.loadtest.isolation.samples import CONTROL_AUC, Variant
from services.loadtest.isolation.verdict import Outcome
from services.settings import RouterSettings
from tests.support.broken_isolation import COARSE_LIMIT, ForgottenTenant, Mute, asserted
from tests.support.redis_servers import server_named
from tests.support.router_host import MODEL, router_settings, running_cluster
from tests.support.running_up import RunningUp, start_up
from worker.config import NumBlocks, RunnerKind
from worker.model_files.digests import default_cache_dir
from worker.torch_runner.prepare import prepare_smollm2

pytestmark = [pytest.mark.alone, pytest.mark.nightly, pytest.mark.timeout(3_600)]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    running = start_up(tmp_path_factory.mktemp("up") / "data")
    yield running
    assert running.stop() == 0, running.output()


@pytest.fixture(scope="module")
def key(up: RunningUp) -> str:
    assert up.run("tenants", "create", "acme").returncode == 0
    return up.run("tenants", "keys", "create", "acme").stdout.strip()


def test_prompts_that_mean_the_same_share_no_block(up: RunningUp, key: str) -> None:
    found = up.run("tokens", "--key", key, "What's the weather", "What is the weather")
    assert found.returncode == ExitCode.OK, found.stderr
    assert "the first 1 of them equal: no full block of 16 can be shared" in found.stdout


def test_an_answer_tells_what_it_used(up: RunningUp, key: str) -> None:
    prompt = "A prefix cache keeps what was computed for the beginning of a prompt. " * 4
    told = []
    for _ in range(2):
        found = up.run("generate", "-v", "--key", key, "--max-tokens", "4", prompt)
        assert found.returncode == ExitCode.OK, found.stderr
        told.append(found.stderr.splitlines())
    cold, warm = told
    assert ": 0 cached, " in cold[0]
    assert "cached (device " in warm[0]
    assert [line.split()[0] for line in warm] == ["tokens", "times", "route"]


def test_tenants_that_are_isolated_pass(up: RunningUp, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "services.cli", "loadtest", "run", "--assert-isolation", "--auc-limit", "0.6"]
    command += ["--data-dir", str(up.data_dir), "--result-dir", str(tmp_path / "run")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=3_000, env=dict(os.environ))
    assert found.returncode == ExitCode.OK, found.stdout + found.stderr
    record = read_isolation(tmp_path / "run")
    assert record is not None
    assert (record.outcome, record.limit) == (Outcome.PASSED, ROUGH_LIMIT)
    assert [each.variant for each in record.variants] == list(Variant)
    for each in record.variants:
        assert (each.own_auc_by_time or 0.0) >= CONTROL_AUC
        assert (each.own_auc_by_tokens or 0.0) >= CONTROL_AUC
        assert each.across_bound < ROUGH_LIMIT


async def test_domains_without_the_tenant_are_found_by_times_alone(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare_smollm2(default_cache_dir(), print)

    def settings(urls: RoleUrls, data: Path, **limits: Any) -> RouterSettings:
        return replace(router_settings(urls, data, **limits), models={MODEL: folder})

    monkeypatch.setattr(fence, "derive_domain", ForgottenTenant())
    worker = {"runner": RunnerKind.PAGED, "model_folder": folder, "pool": NumBlocks(1_024)}
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path, [worker], settings=settings) as cluster:
        found = await asserted(cluster, (COARSE_LIMIT,), (Variant.QUIET,), mute=Mute)
    assert found.verdict.outcome is Outcome.LEAK
    assert "tells what the other one has cached" in found.verdict.variants[0].reason
