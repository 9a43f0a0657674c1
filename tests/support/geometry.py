"""Cache geometries for tests."""

from __future__ import annotations

from cache_store.groups import CacheGeometry, CacheGroup, GroupKind


def one_group(block_size: int = 4) -> CacheGeometry:
    """One full-attention group."""
    return CacheGeometry((CacheGroup(GroupKind.FULL, (0,), 64 * block_size, 0),), block_size)


def two_groups(block_size: int = 4, window: int = 6) -> CacheGeometry:
    """A full and a sliding group."""
    full = CacheGroup(GroupKind.FULL, (0,), 64 * block_size, 0)
    return CacheGeometry((full, CacheGroup(GroupKind.SLIDING, (1,), 64 * block_size, window)), block_size)
