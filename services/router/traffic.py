"""What the requests of each tenant asked of the cache and found in it, since the router's start. For the operator.

Counts only. Owned by one event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from services.router.generation import Started

MAX_TENANTS = 1_024


@dataclass(slots=True)
class TenantTraffic:
    """Of one tenant."""

    num_requests: int = 0
    """Whose first token has come."""
    prompt_tokens: int = 0
    """Of these requests."""
    device_tokens: int = 0
    """Of the prompts' tokens, those that were reused and lay on the worker's device."""
    host_tokens: int = 0
    disk_tokens: int = 0
    peer_tokens: int = 0

    def note(self, started: Started) -> None:
        """One more."""
        cached = started.cached
        self.num_requests += 1
        self.prompt_tokens += started.prompt_tokens
        self.device_tokens += cached.device
        self.host_tokens += cached.host
        self.disk_tokens += cached.disk
        self.peer_tokens += cached.peer


class Traffic:
    """Of all tenants, by name; where there are very many, who asked longest ago is forgotten."""

    def __init__(self, max_tenants: int = MAX_TENANTS) -> None:
        self._max_tenants = max_tenants
        self._tenants: OrderedDict[str, TenantTraffic] = OrderedDict()

    @property
    def tenants(self) -> Mapping[str, TenantTraffic]:
        """By name; only to be looked at."""
        return self._tenants

    def note(self, tenant_name: str, started: Started) -> None:
        """A request's first token has come."""
        traffic = self._tenants.get(tenant_name)
        if traffic is None:
            traffic = self._tenants[tenant_name] = TenantTraffic()
            if len(self._tenants) > self._max_tenants:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(tenant_name)
        traffic.note(started)
