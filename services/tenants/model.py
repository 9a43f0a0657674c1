"""What a tenant and an API key are. Plain values; where they are kept is not known here."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NewType

from cache_store.domain import SECRET_BYTES, Epoch, TenantId
from cache_store.errors import InvalidRequestError
from cache_store.fence import Fence, Mark, Scope
from cache_store.quota import DEFAULT_QUOTA, TenantQuota

KeyId = NewType("KeyId", str)
"""Public part of an API key."""

MAX_LIVE_KEYS = 2
"""Live keys of one tenant: the one in use and its successor."""

MAX_NAME_CHARS = 48
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)


MAX_REQUESTS_IN_FLIGHT = (1 << 32) - 1
MAX_TOKENS_PER_S = 1 << 53
"""Of a limit: as much as every format holds exactly."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What a tenant may ask for, over the whole cluster; None: no limit of its own. Raises InvalidRequestError."""

    requests_in_flight: int | None = None
    """Requests that run at once."""
    tokens_per_s: int | None = None
    """Tokens computed per second: prompt tokens that were not cached, and tokens made."""

    def __post_init__(self) -> None:
        for name, value, most in (
            ("requests_in_flight", self.requests_in_flight, MAX_REQUESTS_IN_FLIGHT),
            ("tokens_per_s", self.tokens_per_s, MAX_TOKENS_PER_S),
        ):
            if value is not None and not 1 <= value <= most:
                raise InvalidRequestError(name, f"{name} is {value}; it is 1 to {most}, or no limit at all")


NO_LIMITS = TenantLimits()


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant that lives. `secret` makes its domain roots; it leaves a process only wrapped."""

    id: TenantId
    name: str
    epoch: Epoch
    epoch_number: int
    """Rotations since it was made: of two states of a tenant the one with more is the newer."""
    secret: bytes = field(repr=False)
    create_unix_s: float
    epoch_unix_s: float
    quota: TenantQuota = DEFAULT_QUOTA
    """As it was set; what of the guarantees is in force tells `services/tenants/guarantees.py`."""
    limits: TenantLimits = NO_LIMITS
    quota_number: int = 0
    """Changes of quota and limits: of two states of a tenant those of the one with more are the newer."""
    quota_unix_s: float = 0.0
    """When they were last changed; 0 where they never were."""
    marks: Mapping[Scope, Mark] = field(default_factory=lambda: MappingProxyType({}))
    """Partitions and models that were purged in this epoch."""

    @property
    def fence(self) -> Fence:
        """Up to where its cache was purged."""
        return Fence(self.id, self.epoch, self.epoch_number, self.marks)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret. Revoked keys stay on record, so that no old copy of the data can revive one."""

    key_id: KeyId
    tenant: TenantId
    secret_hash: bytes = field(repr=False)
    create_unix_s: float
    revoked: bool


def new_tenant(name: str, now_unix_s: float) -> Tenant:
    """A tenant with fresh id, secret and epoch. Raises InvalidRequestError for a name that cannot be one."""
    return Tenant(
        id=TenantId(str(uuid.uuid4())),
        name=checked_name(name),
        epoch=new_epoch(),
        epoch_number=0,
        secret=secrets.token_bytes(SECRET_BYTES),
        create_unix_s=now_unix_s,
        epoch_unix_s=now_unix_s,
    )


def new_epoch() -> Epoch:
    """128 random bits: never the same twice."""
    return Epoch(secrets.token_hex(16))


def new_mark_value() -> str:
    """128 random bits: never the same twice."""
    return secrets.token_hex(16)


def checked_name(name: str) -> str:
    """`name`, where it can name a tenant; else InvalidRequestError."""
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            "name",
            f"{name[:MAX_NAME_CHARS]!r} cannot name a tenant: use 1 to {MAX_NAME_CHARS} lower case letters, digits and "
            "dashes, with no dash at either end, like 'acme-2'",
        )
    return name
