"""The tiers, from the device downwards."""

from __future__ import annotations

from enum import StrEnum


class TierKind(StrEnum):
    """Where blocks live."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
