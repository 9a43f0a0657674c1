"""What each kind of process may do on the Redis server, as rules of its access control list.

One server carries control data and the index, so the rights are split by user. None may run administrative commands.
SCAN and KEYS show the names of keys whatever key patterns a user has: only the operator may SCAN.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RedisRole(StrEnum):
    """A user of the server; the value is its name there."""

    OPERATOR = "operator"
    """Control data: the tenant store and the admin service; publishes quotas, writes what tenants used."""
    ROUTER = "router"
    """Reads control data, index and registry; writes its part of the tenants' limits and nothing else."""
    WORKER = "worker"
    """Writes its own part of index and registry, and what its blocks were used for; of control data it sees the
    published quotas only."""


@dataclass(frozen=True, slots=True)
class RoleUrls:
    """One URL per role, each with that user's password."""

    operator: str
    router: str
    worker: str

    def of(self, role: RedisRole) -> str:
        """URL of `role`."""
        match role:
            case RedisRole.OPERATOR:
                return self.operator
            case RedisRole.ROUTER:
                return self.router
            case RedisRole.WORKER:
                return self.worker


_COMMON = "-@all +@connection -@dangerous -@admin +info +multi +discard +script|load +script|exists"

_RULES = {
    RedisRole.OPERATOR: "+@read +@write -@dangerous +info +time +eval +evalsha +eval_ro +evalsha_ro ~sc:*",
    RedisRole.ROUTER: (
        "+@read -@dangerous -scan -randomkey -dbsize +info +time +eval_ro +evalsha_ro +eval +evalsha +set +hset +hdel"
        " +zadd +zremrangebyscore +pexpire %R~sc:* ~sc:{limits}:* ~sc:{limit:*}:*"
    ),
    RedisRole.WORKER: (
        "+time +get +set +exists +del +unlink +sadd +srem +smembers +srandmember +xadd +hget +hmget +hset +hdel"
        " +hrandfield +expireat +eval +evalsha ~sc:{*}:blocks:* ~sc:inc:* ~sc:{index}:* ~sc:{workers}:*"
        " ~sc:{meter:blocks}:* ~sc:schema %R~sc:quotas"
    ),
}


def acl_rules(role: RedisRole) -> str:
    """Rules after `ACL SETUSER name on >password`, in the syntax of Redis 7 and Valkey."""
    return f"{_COMMON} {_RULES[role]}"
