"""Both servers of the tests accept the users and rights of the roles."""

from __future__ import annotations

import redis

from services.cluster.redis_roles import RedisRole
from tests.support.redis_servers import RedisServer


def test_every_role_gets_in(redis_server: RedisServer) -> None:
    for role in RedisRole:
        with redis.Redis.from_url(redis_server.urls.of(role)) as client:
            assert client.ping()
