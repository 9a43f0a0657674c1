"""The isolation test against real parts: it passes, it finds isolation that was broken on purpose, and it says so where
caching is off. Router, workers with prefill delays, Valkey, gRPC on loopback."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cache_store import fence
from cache_store.audit_mode import AuditMode
from services.cli.exit_codes import ExitCode
from services.cli.main import main
from services.cluster.valkey import EmbeddedValkey
from services.loadtest.isolation.power import ROUGH_LIMIT, STANDARD_LIMIT, THOROUGH_LIMIT
from services.loadtest.isolation.record import read_isolation
from services.loadtest.isolation.samples import Variant
from services.loadtest.isolation.verdict import Outcome
from tests.support.broken_isolation import COARSE_LIMIT, ForgottenTenant, Mute, asserted
from tests.support.redis_servers import server_named
from tests.support.router_host import ADMIN_TOKEN, running_cluster

DELAYS = {"digest_step_s": 0.001, "digest_token_s": 0.0012}
"""A prompt of 64 tokens takes 78 ms, so that a busy machine's pauses do not hide a hit."""
FAST = {"digest_step_s": 0.001, "digest_token_s": 0.0006}
"""For tests that take long, on a machine of their own."""
ALL = tuple(Variant)


@pytest.mark.alone
async def test_tenants_that_are_isolated_pass(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path, [DELAYS, DELAYS]) as cluster:
        found = await asserted(cluster, (0.9,), ALL)
    assert found.verdict.outcome is Outcome.PASSED
    assert [each.variant for each in found.verdict.variants] == list(ALL)


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("limit", [ROUGH_LIMIT, STANDARD_LIMIT, THOROUGH_LIMIT])
async def test_tenants_that_are_isolated_pass_the_tighter_tests(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path, limit: float
) -> None:
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path, [FAST, FAST]) as cluster:
        found = await asserted(cluster, (limit,), ALL)
    assert found.verdict.outcome is Outcome.PASSED


@pytest.mark.alone
@pytest.mark.parametrize("mute", [None, Mute])
async def test_domains_without_the_tenant_are_found(
    request: pytest.FixtureRequest,
    valkey: EmbeddedValkey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mute: type[Mute] | None,
) -> None:
    monkeypatch.setattr(fence, "derive_domain", ForgottenTenant())
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path, [DELAYS]) as cluster:
        found = await asserted(cluster, (COARSE_LIMIT,), (Variant.QUIET,), mute=mute)
    assert found.verdict.outcome is Outcome.LEAK


@pytest.mark.alone
async def test_without_caching_nothing_can_be_told(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path, [FAST | {"audit": AuditMode.PARANOID}]) as cluster:
        found = await asserted(cluster, (COARSE_LIMIT,), (Variant.QUIET,))
    assert found.verdict.outcome is Outcome.BLIND


@pytest.mark.alone
async def test_the_command_tells_by_its_status(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tenants are made for the test, record and page are written; 0 where isolated, 1 where not."""
    (tmp_path / "token").write_text(ADMIN_TOKEN)
    (tmp_path / "token").chmod(0o600)
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path / "router", [DELAYS, DELAYS]) as cluster:
        told = ["--address", cluster.router.address, "--admin-address", cluster.router.admin_address]
        told += ["--admin-token-file", str(tmp_path / "token"), "--auc-limit", "0.9"]

        def command(name: str) -> int:
            return main(["loadtest", "run", "--assert-isolation", *told, "--result-dir", str(tmp_path / name)])

        assert await asyncio.to_thread(command, "whole") == ExitCode.OK
        monkeypatch.setattr(fence, "derive_domain", ForgottenTenant())
        assert await asyncio.to_thread(command, "broken") == ExitCode.REFUSED
    for name, outcome in (("whole", Outcome.PASSED), ("broken", Outcome.LEAK)):
        record = read_isolation(tmp_path / name)
        assert record is not None
        assert record.outcome is outcome
        assert (tmp_path / name / "report.html").exists()
