"""Counts of blocks by tier. A plain value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Blocks by the tier where they lay."""

    device: int = 0
    host: int = 0
    disk: int = 0

    def __add__(self, more: BlockCounts) -> BlockCounts:
        """Both."""
        return BlockCounts(self.device + more.device, self.host + more.host, self.disk + more.disk)
