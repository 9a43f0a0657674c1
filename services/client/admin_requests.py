"""What the operator asks for, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """What of a tenant's quota and limits is to be set; None: as it is, or the usual of a new tenant."""

    tier: str = "device"
    """Whose `min` and `max` are set."""
    min: float | None = None
    """Guaranteed part of every worker's tier, 0 to 1; with min = max the tenant is strict."""
    max: float | None = None
    weight: float | None = None
    max_pinned: float | None = None
    audit_share: float | None = None
    """Part of its cache hits that is checked in idle time, 0 to 1."""
    requests_in_flight: int | None = None
    """0: no limit of its own."""
    tokens_per_s: int | None = None
    """0: no limit of its own."""


USUAL_TERMS = TenantTerms()
