"""The router's view of tenants and keys: a table in memory, exchanged whole, asked on every call.

Knows nothing of Redis. One event loop owns it. It says how old it is, and past a bound that it must not be trusted for
reuse: requests are then computed afresh, exact and isolated but slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cache_store.clock import Clock
from cache_store.domain import Domain, FormatDigest, TenantId
from cache_store.errors import UnauthenticatedError, UnavailableError
from cache_store.fence import derive_fenced_domain
from services.tenants.adapter import LoadedAdapter
from services.tenants.api_key import matches, parse
from services.tenants.model import ApiKey, KeyId, Tenant
from services.tenants.state import EMPTY_STATE, ControlState
from services.tenants.table import ControlTable

CONTROL_AGE_BOUND_S = 10.0
"""Older than this, control data may miss a revocation or a purge: nothing is reused until it is fresh again."""

MAX_DERIVED = 256
"""Domains that are remembered of a tenant: it may name as many partitions as it likes."""

_REFUSAL = "the API key is not valid; send `authorization: Bearer sc-...` with a live key of your tenant"
_NO_HASH = bytes(32)


@dataclass(frozen=True, slots=True)
class KnownTenant:
    """A tenant as of a generation of the control data."""

    tenant: Tenant
    generation: int
    num_revoked_keys: int = 0
    """Of the tenant."""
    _derived: dict[tuple[str, str, FormatDigest], Domain] = field(default_factory=dict, compare=False, repr=False)
    """This tenant's domains that were asked for, by partition, model and format; other control data begins anew."""

    def domain(self, partition: str, model: str, kv_format: FormatDigest) -> Domain:
        """What it has cached of a partition and model is in there, and nothing that was purged."""
        named = (partition, model, kv_format)
        found = self._derived.get(named)
        if found is None:
            if len(self._derived) >= MAX_DERIVED:
                self._derived.clear()
            found = derive_fenced_domain(self.tenant.secret, self.tenant.fence, partition, model, kv_format)
            self._derived[named] = found
        return found


@dataclass(frozen=True)
class _View:
    state: ControlState
    live_keys: dict[KeyId, ApiKey]
    num_revoked_keys: dict[TenantId, int]
    known: dict[TenantId, KnownTenant] = field(default_factory=dict)
    """Tenants of `state` that were asked for."""


class TenantDirectory:
    """Answers who is calling."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._view = _view(EMPTY_STATE)
        self._confirmed_s: float | None = None

    def authenticate(self, api_key: str) -> Tenant:
        """The tenant of a live key.

        Raises UnauthenticatedError, with one sentence whatever is wrong with the key, and UnavailableError before the
        first sync. There is no tenant for callers without a key.
        """
        if not self.is_ready:
            raise UnavailableError("the router has not read the control data yet", 1.0)
        parsed = parse(api_key)
        if parsed is None:
            raise UnauthenticatedError(_REFUSAL)
        key = self._view.live_keys.get(parsed.key_id)
        # An unknown id takes the same comparison, so that its answer comes no sooner.
        if not matches(parsed, key.secret_hash if key else _NO_HASH) or key is None:
            raise UnauthenticatedError(_REFUSAL)
        return self._view.state.table.tenants[key.tenant]

    def tenant_by_name(self, name: str) -> Tenant:
        """Raises NotFoundError."""
        return self._view.state.table.tenant_by_name(name)

    def tenant_by_id(self, tenant_id: TenantId) -> Tenant | None:
        """None where it does not live."""
        return self._view.state.table.tenants.get(tenant_id)

    def adapters_of(self, tenant: TenantId) -> tuple[LoadedAdapter, ...]:
        """Those that exist for the tenant, by name."""
        adapters = self._view.state.table.adapters
        return tuple(adapters[name] for name in sorted(adapters) if adapters[name].is_visible_to(tenant))

    def latest(self, tenant: Tenant) -> KnownTenant:
        """The tenant as it is now: its cache may have been purged since a call began. One that was deleted stays as it
        was; whoever gets its domain knows that by the generation."""
        view = self._view
        known = view.known.get(tenant.id)
        if known is not None:
            return known
        living = view.state.table.tenants.get(tenant.id)
        num_revoked_keys = view.num_revoked_keys.get(tenant.id, 0)
        known = KnownTenant(tenant if living is None else living, self.generation, num_revoked_keys)
        if living is not None:
            view.known[tenant.id] = known
        return known

    @property
    def is_ready(self) -> bool:
        """Whether the control data was read at least once."""
        return self._confirmed_s is not None

    @property
    def is_stale(self) -> bool:
        """Whether nothing may be reused, because the data is older than the bound or was never read."""
        return self.age_s() > CONTROL_AGE_BOUND_S

    def age_s(self) -> float:
        """Seconds since the data was known to be current; infinite before the first sync."""
        return math.inf if self._confirmed_s is None else self._clock.monotonic_s() - self._confirmed_s

    @property
    def generation(self) -> int:
        """Of the data in use; 0 for that of an empty store."""
        return self._view.state.generation

    @property
    def state(self) -> ControlState:
        """The data in use."""
        return self._view.state

    def install(self, state: ControlState) -> None:
        """Takes other data into use, for the next call on."""
        state.table.check_invariants()
        self._view = _view(state)

    def confirm(self, asked_s: float) -> None:
        """Notes that the data was current when the store was asked, at `asked_s` of the monotonic clock."""
        self._confirmed_s = asked_s if self._confirmed_s is None else max(asked_s, self._confirmed_s)


def _view(state: ControlState) -> _View:
    return _View(state, _live_keys(state.table), state.table.num_revoked_keys())


def _live_keys(table: ControlTable) -> dict[KeyId, ApiKey]:
    return {key.key_id: key for key in table.keys.values() if not key.revoked}
