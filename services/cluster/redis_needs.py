"""The commands that each role sends, with keys of the shapes that it uses: what its user has to be allowed.

Kept beside `redis_roles.py`, which grants them; a test runs one against the other.
"""

from __future__ import annotations

from cache_store.domain import DomainTag, TenantId
from cache_store.index import Incarnation
from cache_store.meter_store import MeterSpace
from cache_store.redis_keys import (
    CURRENT_KEY,
    INCARNATIONS_KEY,
    LIMITS_BIRTH_KEY,
    LIMITS_ROUTERS_KEY,
    QUOTAS_KEY,
    SCHEMA_KEY,
    blocks_key,
    domains_key,
    lease_key,
    mark_key,
    meter_hour_key,
    meter_writers_key,
    places_key,
    tokens_key,
)
from cache_store.redis_session import CLAIM_SCHEMA, Command
from services.cluster.redis_roles import RedisRole
from services.tenants.redis_store import CONTROL_KEY

_PROBE = Incarnation("0" * 32)
_BLOCKS = blocks_key(DomainTag(bytes(16)), _PROBE)
_DOMAINS = domains_key(_PROBE)
_MARK = mark_key(_PROBE)
_LEASE = lease_key(_PROBE)
_PLACES = places_key(TenantId("0"))
_TOKENS = tokens_key(TenantId("0"))
_REQUESTS_WRITERS, _REQUESTS_HOUR = meter_writers_key(MeterSpace.REQUESTS), meter_hour_key(MeterSpace.REQUESTS, 0)
_BLOCKS_WRITERS, _BLOCKS_HOUR = meter_writers_key(MeterSpace.BLOCKS), meter_hour_key(MeterSpace.BLOCKS, 0)
_SHA1 = "0" * 40

_SCHEMA: tuple[Command, ...] = (("PING",), ("GET", SCHEMA_KEY))

_NEEDS: dict[RedisRole, tuple[Command, ...]] = {
    RedisRole.OPERATOR: (
        *_SCHEMA,
        ("HGET", CONTROL_KEY, "head"),
        ("HGETALL", CONTROL_KEY),
        ("HSET", CONTROL_KEY, "head", ""),
        ("HDEL", CONTROL_KEY, "head"),
        ("EVAL", "return 0", 1, CONTROL_KEY),
        ("HGET", QUOTAS_KEY, "head"),
        ("HSET", QUOTAS_KEY, "head", "", "body", ""),
        ("EVALSHA", _SHA1, 1, QUOTAS_KEY),
        ("EVALSHA", _SHA1, 2, _REQUESTS_WRITERS, _REQUESTS_HOUR),
        ("HGET", _REQUESTS_WRITERS, ""),
        ("HSET", _REQUESTS_HOUR, "", ""),
        ("HDEL", _REQUESTS_WRITERS, ""),
        ("HRANDFIELD", _REQUESTS_WRITERS, 4, "WITHVALUES"),
        ("EXPIREAT", _REQUESTS_HOUR, 1),
        ("TIME",),
    ),
    RedisRole.ROUTER: (
        *_SCHEMA,
        ("HGET", CONTROL_KEY, "head"),
        ("HGETALL", CONTROL_KEY),
        ("HGETALL", CURRENT_KEY),
        ("MGET", _LEASE),
        ("EVALSHA_RO", _SHA1, 1, _BLOCKS),
        ("EVAL_RO", "return 0", 1, _BLOCKS),
        ("SISMEMBER", _BLOCKS, ""),
        ("SMISMEMBER", _BLOCKS, "", ""),
        ("EVALSHA", _SHA1, 1, _PLACES),
        ("EVAL", "return 0", 2, LIMITS_ROUTERS_KEY, LIMITS_BIRTH_KEY),
        ("TIME",),
        ("ZADD", LIMITS_ROUTERS_KEY, "0", "-"),
        ("ZREMRANGEBYSCORE", LIMITS_ROUTERS_KEY, "-inf", "0"),
        ("ZCARD", LIMITS_ROUTERS_KEY),
        ("PEXPIRE", LIMITS_ROUTERS_KEY, 1),
        ("GET", LIMITS_BIRTH_KEY),
        ("SET", LIMITS_BIRTH_KEY, "", "PX", 1),
        ("HGETALL", _PLACES),
        ("HSET", _PLACES, "-", ""),
        ("HDEL", _PLACES, "-"),
        ("PEXPIRE", _PLACES, 1),
        ("HMGET", _TOKENS, "level", "at"),
        ("HSET", _TOKENS, "level", "0"),
        ("PEXPIRE", _TOKENS, 1),
        ("HGETALL", _REQUESTS_HOUR),
        ("HGET", _REQUESTS_HOUR, ""),
        ("HGETALL", _BLOCKS_HOUR),
        ("HGET", _BLOCKS_HOUR, ""),
    ),
    RedisRole.WORKER: (
        *_SCHEMA,
        CLAIM_SCHEMA,
        ("SADD", INCARNATIONS_KEY, _PROBE),
        ("SREM", INCARNATIONS_KEY, _PROBE),
        ("SRANDMEMBER", INCARNATIONS_KEY, 1),
        ("SADD", _BLOCKS, ""),
        ("SREM", _BLOCKS, ""),
        ("EXISTS", _BLOCKS),
        ("UNLINK", _BLOCKS),
        ("SADD", _DOMAINS, ""),
        ("SREM", _DOMAINS, ""),
        ("SMEMBERS", _DOMAINS),
        ("UNLINK", _DOMAINS),
        ("SET", _MARK, 1, "GET"),
        ("UNLINK", _MARK),
        ("EVALSHA", _SHA1, 2, CURRENT_KEY, _LEASE),
        ("EVAL", "return 0", 2, CURRENT_KEY, _LEASE),
        ("TIME",),
        ("HGET", CURRENT_KEY, ""),
        ("HSET", CURRENT_KEY, "", ""),
        ("HDEL", CURRENT_KEY, ""),
        ("HRANDFIELD", CURRENT_KEY, 1, "WITHVALUES"),
        ("SET", _LEASE, "", "PX", 1, "GET"),
        ("EXISTS", _LEASE),
        ("DEL", _LEASE),
        ("HGET", QUOTAS_KEY, "head"),
        ("HMGET", QUOTAS_KEY, "head", "body"),
        ("EVALSHA", _SHA1, 2, _BLOCKS_WRITERS, _BLOCKS_HOUR),
        ("HGET", _BLOCKS_WRITERS, ""),
        ("HSET", _BLOCKS_HOUR, "", ""),
        ("HDEL", _BLOCKS_WRITERS, ""),
        ("HRANDFIELD", _BLOCKS_WRITERS, 4, "WITHVALUES"),
        ("EXPIREAT", _BLOCKS_HOUR, 1),
    ),
}

_EXCESS: dict[RedisRole, tuple[Command, ...]] = {
    RedisRole.OPERATOR: (("FLUSHALL",), ("CONFIG", "GET", "*")),
    RedisRole.ROUTER: (
        ("HSET", CONTROL_KEY, "head", ""),
        ("EVAL", "return 0", 1, CONTROL_KEY),
        ("HSET", QUOTAS_KEY, "head", ""),
        ("HSET", _REQUESTS_HOUR, "", ""),
        ("HSET", _BLOCKS_HOUR, "", ""),
        ("SADD", _BLOCKS, ""),
        ("SET", _LEASE, ""),
        ("SCAN", "0"),
        ("FLUSHALL",),
    ),
    RedisRole.WORKER: (
        ("HGETALL", CONTROL_KEY),
        ("HSET", QUOTAS_KEY, "head", ""),
        ("HDEL", QUOTAS_KEY, "head"),
        ("HSET", _PLACES, "-", ""),
        ("HSET", _REQUESTS_HOUR, "", ""),
        ("HGETALL", _REQUESTS_HOUR),
        ("SCAN", "0"),
        ("FLUSHALL",),
    ),
}


def needed_commands(role: RedisRole) -> tuple[Command, ...]:
    """What `role` sends."""
    return _NEEDS[role]


def excessive_commands(role: RedisRole) -> tuple[Command, ...]:
    """What a user of `role` could do harm with."""
    return _EXCESS[role]
