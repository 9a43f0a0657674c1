"""`stemcache doctor` on surroundings with real faults: each is found, told with what to do, and in the exit status."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from services.cluster.redis_roles import RedisRole
from tests.support.redis_servers import RedisServer
from tests.support.running_up import run_stemcache

FREE = ("--port", "0", "--admin-port", "0")


@pytest.fixture(scope="module", autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache folder for all, so that the kernel is compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEMCACHE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("STEMCACHE_REDIS_URL", raising=False)
        yield


def _doctor(tmp_path: Path, *flags: str, **environ: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Exit status, and findings by check."""
    result = run_stemcache("doctor", "--json", "--data-dir", str(tmp_path / "data"), *flags, **environ)
    assert "Traceback" not in result.stderr, result.stderr
    findings: dict[str, list[dict[str, str]]] = {}
    for finding in json.loads(result.stdout):
        findings.setdefault(finding["check"], []).append(finding)
    return result.returncode, findings


def _only_problem(findings: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    problems = [each for group in findings.values() for each in group if each["level"] == "problem"]
    assert len(problems) == 1, problems
    assert problems[0]["advice"]
    return problems[0]


def test_nothing_to_complain_about(tmp_path: Path) -> None:
    status, findings = _doctor(tmp_path, *FREE)
    assert status == 0, findings
    checks = {"data folder", "redis", "port", "admin port", "compiler", "model", "memory", "temporary folder"}
    assert set(findings) == checks


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        status, findings = _doctor(tmp_path, "--port", port, "--admin-port", "0")
    assert status == 1
    assert port in _only_problem(findings)["found"]


def test_an_incomplete_model_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    status, findings = _doctor(tmp_path, *FREE, "--model", str(tmp_path / "model"))
    assert status == 1
    assert "no weights" in _only_problem(findings)["found"]


@pytest.mark.parametrize("compiler", ["/bin/false", "/no/such/compiler"])
def test_a_missing_compiler_is_a_warning(tmp_path: Path, compiler: str) -> None:
    status, findings = _doctor(tmp_path, *FREE, CC=compiler, CXX="")
    assert status == 0
    (finding,) = findings["compiler"]
    assert finding["level"] == "warning"
    assert "g++" in finding["advice"]


def test_no_redis_at_the_url(tmp_path: Path) -> None:
    status, findings = _doctor(tmp_path, *FREE, "--redis-url", "redis://operator:s3cr3t@127.0.0.1:9/0")
    assert status == 1
    problem = _only_problem(findings)
    assert "127.0.0.1:9" in problem["found"]
    assert "s3cr3t" not in json.dumps(findings)


def test_wrong_rights(tmp_path: Path, redis_server: RedisServer) -> None:
    status, findings = _doctor(tmp_path, *FREE, STEMCACHE_REDIS_URL=redis_server.urls.of(RedisRole.WORKER))
    assert status == 1
    problems = [each for each in findings["redis"] if each["level"] == "problem"]
    assert any("sc:control" in each["found"] for each in problems)
    assert all("ACL SETUSER" in each["advice"] for each in problems)


def test_too_little_memory(tmp_path: Path) -> None:
    status, findings = _doctor(tmp_path, *FREE, "--workers", "10000")
    assert status == 1
    assert "too little memory" in _only_problem(findings)["found"]


def test_a_wrong_password(tmp_path: Path, redis_server: RedisServer) -> None:
    password = redis.connection.parse_url(redis_server.urls.operator)["password"]
    url = redis_server.urls.operator.replace(password, secrets.token_hex(8))
    status, findings = _doctor(tmp_path, *FREE, STEMCACHE_REDIS_URL=url)
    assert status == 1
    assert "password" in _only_problem(findings)["found"]


def test_findings_are_readable(tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path / "data"), *FREE, "--workers", "10000")
    result = run_stemcache("doctor", *flags)
    assert result.returncode == 1
    assert "PROBLEM memory: too little memory" in result.stdout
    assert "  -> start fewer workers" in result.stdout
