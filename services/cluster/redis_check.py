"""Finds out whether a Redis or Valkey server is fit for Stemcache, and says what to do where it is not.

Changes nothing: the commands of a role are queued in a transaction, where the server refuses those that its user may
not run, and the transaction is discarded. Messages name the server without its password.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from cache_store.redis_keys import SCHEMA_KEY, SCHEMA_VERSION
from cache_store.redis_session import Command
from services.cluster.redis_needs import excessive_commands, needed_commands
from services.cluster.redis_roles import RedisRole, acl_rules

MIN_MAJOR_VERSION = 7
CHECK_TIMEOUT_S = 3.0
"""For each answer."""


class Severity(StrEnum):
    """Whether it would work nevertheless."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class RedisFinding:
    """One thing that is not as it should be."""

    severity: Severity
    problem: str
    why: str
    """What goes wrong by it."""
    remedy: str
    """What to do."""


def check_redis(url: str, role: RedisRole) -> list[RedisFinding]:
    """Everything that is wrong with the server at `url` for `role`. Blocks for a few answers."""
    try:
        client = redis.Redis.from_url(
            url,
            protocol=2,
            socket_timeout=CHECK_TIMEOUT_S,
            socket_connect_timeout=CHECK_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        return [_bad_url(error)]
    with client:
        try:
            client.ping()
            return [*_check_info(client), *_check_schema(client), *_check_rights(client, role)]
        except RedisError as error:
            return [_no_answer(url, error)]


def judge_server(info: Mapping[str, object]) -> Iterator[RedisFinding]:
    """What the fields of INFO tell about version and settings."""
    yield from _judge_version(info)
    if info.get("cluster_enabled") == 1:
        yield RedisFinding(
            Severity.ERROR,
            "the server is part of a Redis Cluster",
            "redirections between its nodes are not followed",
            "use a server with cluster-enabled no, or one behind a proxy that hides the nodes",
        )
    if info.get("role") == "slave":
        yield RedisFinding(
            Severity.ERROR,
            "the server is a replica",
            "index, registry and control data are written",
            "give the URL of the primary",
        )
    policy = info.get("maxmemory_policy")
    if policy != "noeviction":
        limited = info.get("maxmemory") != 0
        yield RedisFinding(
            Severity.ERROR if limited else Severity.WARNING,
            f"the server's eviction policy is {policy}",
            "when memory is short it would silently remove tenants, keys and leases",
            "CONFIG SET maxmemory-policy noeviction",
        )
    if info.get("aof_enabled") != 1:
        yield RedisFinding(
            Severity.WARNING,
            "the server keeps no append-only file",
            "tenants and keys that were made since the last snapshot are lost when it restarts",
            "CONFIG SET appendonly yes (and appendonly yes in its configuration file)",
        )


def _judge_version(info: Mapping[str, object]) -> Iterator[RedisFinding]:
    """Valkey tells its own version beside that of the Redis that it began from."""
    name, version = (
        ("Valkey", info.get("valkey_version")) if "valkey_version" in info else ("Redis", info.get("redis_version"))
    )
    major = str(version).split(".", 1)[0]
    if not major.isdigit() or int(major) < MIN_MAJOR_VERSION:
        yield RedisFinding(
            Severity.ERROR,
            f"the server is {name} {version}",
            f"scripts that only read, and rights to read only, came with version {MIN_MAJOR_VERSION}",
            f"use Valkey, or Redis {MIN_MAJOR_VERSION} or later",
        )


def _check_info(client: redis.Redis) -> Iterator[RedisFinding]:
    try:
        info: Any = client.info()
    except NoPermissionError:
        yield RedisFinding(
            Severity.ERROR,
            "the user may not run INFO",
            "version, eviction policy and persistence cannot be checked",
            "grant +info",
        )
        return
    yield from judge_server(info)


def _check_schema(client: redis.Redis) -> Iterator[RedisFinding]:
    try:
        found: Any = client.get(SCHEMA_KEY)
    except NoPermissionError:
        return  # told among the rights
    if found not in (None, str(SCHEMA_VERSION).encode()):
        version = found.decode("utf-8", "replace")
        yield RedisFinding(
            Severity.ERROR,
            f"the index in Redis has layout version {version}, this build speaks {SCHEMA_VERSION}",
            "builds of different layouts would misread each other's entries",
            "run builds of one version against one server, or another database number for each (…/1)",
        )


def _check_rights(client: redis.Redis, role: RedisRole) -> Iterator[RedisFinding]:
    remedy = f"give the {role} a user of its own: ACL SETUSER {role} reset on '>PASSWORD' {acl_rules(role)}"
    needed, excess = needed_commands(role), excessive_commands(role)
    missing, refused = _refused(client, needed), _refused(client, excess)
    if missing:
        yield RedisFinding(Severity.ERROR, f"the user may not run {_names(missing)}", f"a {role} needs that", remedy)
    allowed = [command for command in excess if command not in refused]
    if allowed:
        why = f"a {role} does not need that, and who takes one over could use it"
        yield RedisFinding(Severity.WARNING, f"the user may run {_names(allowed)}", why, remedy)


def _refused(client: redis.Redis, commands: Sequence[Command]) -> list[Command]:
    """Those that the server does not queue for lack of rights."""
    connection: Any = client.connection_pool.get_connection()  # raw: queued commands are not answered as usual
    try:
        return [command for command in commands if not _may_run(connection, command)]
    finally:
        connection.disconnect()
        client.connection_pool.release(connection)


def _may_run(connection: Any, command: Command) -> bool:
    may = True
    for step in (("MULTI",), command, ("DISCARD",)):
        connection.send_command(*step)
        try:
            connection.read_response()
        except NoPermissionError:
            may = False
    return may


def _names(commands: Iterable[Command]) -> str:
    """Commands with their keys, for people."""
    return ", ".join(_name(command) for command in commands)


def _name(command: Command) -> str:
    keys = [str(part) for part in command[1:] if str(part).startswith("sc:")]
    return " ".join([str(command[0]), *keys])


def _bad_url(error: ValueError) -> RedisFinding:
    return RedisFinding(
        Severity.ERROR,
        "the Redis URL cannot be read",
        str(error),
        "write it as redis://USER:PASSWORD@HOST:6379/0, rediss://… with TLS, or unix://USER:PASSWORD@/PATH?db=0",
    )


def _no_answer(url: str, error: RedisError) -> RedisFinding:
    place = _place(url)
    if isinstance(error, BusyLoadingError):
        return RedisFinding(
            Severity.ERROR, f"the server at {place} loads its data", "it answers when it is done", "wait and try again"
        )
    if isinstance(error, AuthenticationError):
        return RedisFinding(
            Severity.ERROR,
            f"the server at {place} does not accept the user or its password",
            str(error),
            "check user and password in the URL (special characters percent-encoded), and ACL LIST on the server",
        )
    if isinstance(error, ResponseError):
        return RedisFinding(
            Severity.ERROR, f"the server at {place} refuses a first command", str(error), "grant +ping and +@connection"
        )
    return RedisFinding(
        Severity.ERROR,
        f"there is no Redis at {place}",
        str(error),
        "start it, check host, port or path, and whether a firewall is between; or leave the URL out to use the "
        "embedded Valkey",
    )


def _place(url: str) -> str:
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
