"""What is remembered of recent requests, for the operator: one append-only record each, in a bounded ring.

Entries are only added; how a request is doing is read from all of them together. Holds no prompts, tokens, digests or
keys. Owned by one event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from cache_store.registry import WorkerId
from cache_store.usage import CachedTokens
from services.router.generation import Timings
from services.router.outlook import Outlooks
from services.router.routing import RouteRule, RouteTerm

MAX_RECORDS = 4_096


@dataclass(frozen=True, slots=True)
class Arrived:
    """It was admitted by the router."""

    receive_unix_s: float
    model: str


@dataclass(frozen=True, slots=True)
class Routed:
    """A worker was chosen; twice where the first one was lost."""

    prompt_tokens: int
    rule: RouteRule
    terms: tuple[RouteTerm, ...]
    degraded: bool
    route_s: float
    heat: float = 0.0
    """Requests that lately began with what the best holder had of it."""


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The worker's answer began."""

    worker_id: WorkerId
    cached: CachedTokens


@dataclass(frozen=True, slots=True)
class Ended:
    """It is over."""

    status: str
    """Name of the gRPC status."""
    completion_tokens: int
    timings: Timings | None
    """None where it failed."""


Entry = Arrived | Outlooks | Routed | FirstToken | Ended


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request of one tenant."""

    tenant_name: str
    request_id: str
    entries: list[Entry] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """Appends."""
        self.entries.append(entry)


class RequestRecords:
    """The last requests of one router."""

    def __init__(self, max_records: int = MAX_RECORDS) -> None:
        self._max_records = max_records
        self._records: OrderedDict[tuple[str, str], RequestRecord] = OrderedDict()

    def open(self, tenant_name: str, request_id: str) -> RequestRecord:
        """A new record; it takes the place of an older one of the same id, and the oldest goes where it is full."""
        key = (tenant_name, request_id)
        self._records.pop(key, None)
        record = self._records[key] = RequestRecord(tenant_name, request_id)
        if len(self._records) > self._max_records:
            self._records.popitem(last=False)
        return record

    def latest(self, num_most: int, tenant_name: str = "") -> list[RequestRecord]:
        """Newest first; of one tenant where it is named."""
        records = (each for each in reversed(self._records.values()) if tenant_name in ("", each.tenant_name))
        return list(islice(records, num_most))

    def find(self, tenant_name: str, request_id: str) -> RequestRecord | None:
        """None where it is not remembered."""
        return self._records.get((tenant_name, request_id))
