"""How many of its cache hits a worker checks."""

from __future__ import annotations

from enum import StrEnum


class AuditMode(StrEnum):
    """When cached keys and values are compared with computed ones."""

    SAMPLED = "sampled"
    """After their use, in idle time, for each tenant's share of its hits (`TenantQuota.audit_share`)."""
    PARANOID = "paranoid"
    """Before their use, all of them: nothing cached is used, everything is computed, and what is cached is compared."""
