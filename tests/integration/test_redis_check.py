"""The check of a Redis server: silent where all is well, and each fault with its remedy."""

from __future__ import annotations

import pytest
import redis

from cache_store.redis_keys import SCHEMA_KEY
from services.cluster.cluster_checks import Places, check_cluster
from services.cluster.findings import Level
from services.cluster.redis_check import RedisFinding, Severity, check_redis, judge_server
from services.cluster.redis_roles import RedisRole
from services.cluster.valkey import EmbeddedValkey
from tests.support.redis_servers import RedisServer

WELL: dict[str, object] = {
    "redis_version": "7.2.4",
    "valkey_version": "9.1.2",
    "role": "master",
    "cluster_enabled": 0,
    "maxmemory": 0,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
}


def only(findings: list[RedisFinding]) -> RedisFinding:
    [finding] = findings
    assert finding.problem
    assert finding.why
    assert finding.remedy
    return finding


@pytest.mark.parametrize("role", list(RedisRole))
def test_the_embedded_server_is_fit_for_every_role_and_gives_no_more_than_needed(
    valkey: EmbeddedValkey, role: RedisRole
) -> None:
    assert check_redis(valkey.urls.of(role), role) == []


@pytest.mark.parametrize("role", list(RedisRole))
def test_a_server_without_append_only_file_is_warned_of(path_redis: RedisServer, role: RedisRole) -> None:
    finding = only(check_redis(path_redis.urls.of(role), role))
    assert finding.severity is Severity.WARNING
    assert "append-only" in finding.problem


@pytest.mark.parametrize(
    ("user", "role", "missing"),
    [
        (RedisRole.ROUTER, RedisRole.WORKER, "SADD sc:{index}:incarnations"),
        (RedisRole.WORKER, RedisRole.ROUTER, "HGETALL sc:control"),
        (RedisRole.ROUTER, RedisRole.OPERATOR, "HSET sc:control"),
    ],
)
def test_missing_rights_are_named_with_the_line_that_grants_them(
    redis_server: RedisServer, user: RedisRole, role: RedisRole, missing: str
) -> None:
    findings = check_redis(redis_server.urls.of(user), role)
    [finding] = [each for each in findings if each.severity is Severity.ERROR]
    assert missing in finding.problem
    assert f"ACL SETUSER {role}" in finding.remedy


def test_rights_that_a_role_does_not_need_are_warned_of(valkey: EmbeddedValkey) -> None:
    finding = only(check_redis(valkey.urls.operator, RedisRole.ROUTER))
    assert finding.severity is Severity.WARNING
    assert "HSET sc:control" in finding.problem


def test_the_check_leaves_nothing_behind(redis_server: RedisServer) -> None:
    for role in RedisRole:
        check_redis(redis_server.urls.operator, role)
    assert redis_server.key_names() == []


def test_another_layout_is_told(valkey: EmbeddedValkey) -> None:
    with redis.Redis.from_url(valkey.urls.operator) as operator:
        operator.set(SCHEMA_KEY, "99")
        finding = only(check_redis(valkey.urls.worker, RedisRole.WORKER))
        operator.unlink(SCHEMA_KEY)
    assert "version 99" in finding.problem


def test_a_wrong_password_is_told_without_repeating_it(valkey: EmbeddedValkey) -> None:
    url = valkey.urls.router.replace("router:", "router:secret")
    finding = only(check_redis(url, RedisRole.ROUTER))
    assert "does not accept the user" in finding.problem
    assert "secret" not in repr(finding)


@pytest.mark.parametrize("url", ["redis://user:secret@127.0.0.1:1/0", "unix://user:secret@/nowhere/redis.sock"])
def test_a_server_that_is_not_there_is_told_without_the_password(url: str) -> None:
    finding = only(check_redis(url, RedisRole.ROUTER))
    assert "there is no Redis at" in finding.problem
    assert "secret" not in repr(finding)


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost", "redis://host:port/0"])
def test_a_url_that_is_none_is_told(url: str) -> None:
    assert "URL cannot be read" in only(check_redis(url, RedisRole.ROUTER)).problem


def test_a_server_as_it_should_be_has_no_findings() -> None:
    assert list(judge_server(WELL)) == []


@pytest.mark.parametrize(
    ("fault", "severity", "problem"),
    [
        ({"valkey_version": "6.9.9"}, Severity.ERROR, "Valkey 6.9.9"),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": 1_000}, Severity.ERROR, "allkeys-lru"),
        ({"maxmemory_policy": "allkeys-lru"}, Severity.WARNING, "allkeys-lru"),
        ({"aof_enabled": 0}, Severity.WARNING, "append-only"),
        ({"role": "slave"}, Severity.ERROR, "replica"),
        ({"cluster_enabled": 1}, Severity.ERROR, "Cluster"),
    ],
)
def test_each_fault_of_a_server_is_told(fault: dict[str, object], severity: Severity, problem: str) -> None:
    finding = only(list(judge_server(WELL | fault)))
    assert finding.severity is severity
    assert problem in finding.problem


@pytest.mark.parametrize("version", ["6.2.14", "5", "", None])
def test_an_old_redis_is_told(version: str | None) -> None:
    info = {name: value for name, value in WELL.items() if name != "valkey_version"} | {"redis_version": version}
    assert f"Redis {version}" in only(list(judge_server(info))).problem


def test_a_cluster_is_checked_by_the_urls_of_its_roles(valkey: EmbeddedValkey) -> None:
    """Rights of each role, and an empty registry."""
    urls = {role: valkey.urls.of(role) for role in RedisRole}
    findings = list(check_cluster(Places(urls)))
    by_check = {each.check: each for each in findings}
    assert [by_check[f"redis as {role}"].level for role in RedisRole] == [Level.OK] * 3
    assert "no worker is in the registry" in by_check["workers"].found
    swapped = {RedisRole.WORKER: valkey.urls.router}
    assert any("may not run" in each.found for each in check_cluster(Places(swapped)))
