"""Names of everything that Stemcache keeps in Redis about blocks and workers; no other module spells one.

    sc:schema                       version of this layout
    sc:{DOMAIN TAG}:blocks:INC      SET of 16-byte digests: what an incarnation holds of a domain
    sc:inc:{INC}:domains            SET of domain tags: where that incarnation may hold blocks
    sc:inc:{INC}:mark               what its writer wrote last; another value means that the index lost writes
    sc:inc:{INC}:changes            STREAM of its last batches of changes, each with the mark that it was written under
    sc:{index}:incarnations         SET of incarnations that wrote to the index and were not dropped since
    sc:{workers}:current            HASH worker id -> order and name of its newest incarnation
    sc:{workers}:lease:INC          record of a worker, expires with its lease
    sc:quotas                       HASH of head and body: quotas of tenants, written by routers, read by workers
    sc:{limits}:routers             ZSET of routers by the end of their lease
    sc:{limits}:birth               name of the life of the limits' data; expires when no router asks
    sc:{limit:TENANT}:places        HASH router -> places of the tenant's requests that it has leased; expires
    sc:{limit:TENANT}:tokens        HASH of the tenant's token bucket; expires when it is full
    sc:{meter:SPACE}:writers        HASH writer -> number and hour of the last batch of counts that it added; durable
    sc:{meter:SPACE}:hour:N         HASH tenant -> what it used in the N-th hour since 1970; durable, expires
    sc:{meter:requests}:name:TENANT STRING what a tenant that was deleted was called; durable, expires

What stands in braces decides the slot of a Redis Cluster: keys that one script reads share it. Control data lies under
`sc:control` and belongs to `services/tenants`.
"""

from __future__ import annotations

from cache_store.domain import DomainTag, TenantId
from cache_store.index import Incarnation
from cache_store.meter_store import MeterSpace

SCHEMA_VERSION = 1
SCHEMA_KEY = "sc:schema"

INCARNATIONS_KEY = "sc:{index}:incarnations"
CURRENT_KEY = "sc:{workers}:current"
QUOTAS_KEY = "sc:quotas"
LIMITS_ROUTERS_KEY = "sc:{limits}:routers"
LIMITS_BIRTH_KEY = "sc:{limits}:birth"


def parse_current(entry: bytes) -> tuple[int, Incarnation] | None:
    """Order and name of a newest incarnation in CURRENT_KEY; None for what `renew.lua` has not written."""
    order, _, incarnation = entry.partition(b" ")
    if not order.isdigit() or not incarnation.isalnum():
        return None
    return int(order), Incarnation(incarnation.decode())


def blocks_key(domain_tag: DomainTag, incarnation: Incarnation) -> str:
    """SET of what `incarnation` holds of a domain."""
    return f"sc:{{{domain_tag.hex()}}}:blocks:{incarnation}"


def domains_key(incarnation: Incarnation) -> str:
    """SET of the domains of which `incarnation` may hold blocks, so that dropping it needs no scan."""
    return f"sc:inc:{{{incarnation}}}:domains"


def mark_key(incarnation: Incarnation) -> str:
    """The last mark of the writer of `incarnation`."""
    return f"sc:inc:{{{incarnation}}}:mark"


def changes_key(incarnation: Incarnation) -> str:
    """STREAM of what the writer of `incarnation` changed lately."""
    return f"sc:inc:{{{incarnation}}}:changes"


def lease_key(incarnation: Incarnation) -> str:
    """Record under the lease of `incarnation`."""
    return f"sc:{{workers}}:lease:{incarnation}"


def places_key(tenant: TenantId) -> str:
    """Who has leased places of a tenant's limit on requests in flight."""
    return f"sc:{{limit:{tenant}}}:places"


def tokens_key(tenant: TenantId) -> str:
    """The bucket of a tenant's limit on tokens per second."""
    return f"sc:{{limit:{tenant}}}:tokens"


def meter_writers_key(space: MeterSpace) -> str:
    """Up to where each writer's counts are part of the hours of `space`."""
    return f"sc:{{meter:{space}}}:writers"


def meter_name_key(tenant: TenantId) -> str:
    """What a tenant that was deleted was called."""
    return f"sc:{{meter:{MeterSpace.REQUESTS}}}:name:{tenant}"


def meter_hour_key(space: MeterSpace, hour: int) -> str:
    """What tenants used in one hour."""
    return f"sc:{{meter:{space}}}:hour:{hour}"
