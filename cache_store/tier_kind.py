"""The tiers, from the device downwards."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TierKind(StrEnum):
    """Where blocks live."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class Elsewhere(StrEnum):
    """Where blocks come from that is no tier of this worker."""

    PEER = "peer"
    """Another worker."""


@dataclass(frozen=True, slots=True)
class TierSizes:
    """Blocks that fit below the device. What goes to disk goes through the host's memory."""

    num_host_blocks: int = 0
    num_disk_blocks: int = 0

    def __post_init__(self) -> None:
        if self.num_host_blocks < 0 or self.num_disk_blocks < 0:
            raise ValueError("a tier has no negative number of blocks")
        if self.num_disk_blocks and not self.num_host_blocks:
            raise ValueError("a disk tier needs a host tier: blocks go to disk through the host's memory")


DEVICE_ONLY = TierSizes()
