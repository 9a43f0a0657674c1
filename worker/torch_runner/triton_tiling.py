"""Sizes of tiles for the Triton kernels, by shape of a layer. None has been timed on a GPU yet; all compile for one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tiling:
    """How one kernel cuts its work."""

    tile_rows: int
    """Query heads × tokens that a program holds."""
    tile_keys: int
    """Keys per step of its loop."""
    num_warps: int
    num_stages: int
    """Tiles of keys on their way at once."""

    def tokens(self, group: int) -> int:
        """Tokens per item where `group` query heads share a key head."""
        return max(1, self.tile_rows // group)

    def num_row_tiles(self, group: int) -> int:
        """Programs per item and key head."""
        return -(-self.tokens(group) * group // self.tile_rows)


def power_of_two(number: int) -> int:
    """The least one that is not smaller."""
    return 1 << max(0, number - 1).bit_length()


def padded(width: int) -> int:
    """Width of a tile that holds `width` elements; products need 16."""
    return max(16, power_of_two(width))


_LIGHT = Tiling(16, 16, 4, 1)


def _is_heavy(key_dim: int, element_bytes: int) -> bool:
    """Whether products are taken outside of tensor cores, and of wide heads: larger tiles would not fit registers."""
    return element_bytes > 2 and padded(key_dim) > 128


def decode_tiling(group: int, key_dim: int, element_bytes: int) -> Tiling:
    """For rows of one token, whose keys are read once and hardly computed with."""
    if _is_heavy(key_dim, element_bytes):
        return _LIGHT
    keys = 64 if padded(key_dim) * element_bytes <= 256 else 32
    return Tiling(min(64, max(16, power_of_two(group))), keys, 4, 3 if element_bytes <= 2 else 2)


def prefill_tiling(key_dim: int, element_bytes: int) -> Tiling:
    """For rows of many tokens."""
    if _is_heavy(key_dim, element_bytes):
        return _LIGHT
    if element_bytes > 2:
        return Tiling(32, 32, 4, 1)
    return Tiling(128, 64, 8, 2) if padded(key_dim) <= 128 else Tiling(64, 32, 4, 2)


def latent_tiling(element_bytes: int) -> Tiling:
    """For latent vectors, hundreds of elements wide."""
    return Tiling(16, 32 if element_bytes <= 2 else 16, 4, 2 if element_bytes <= 2 else 1)


def split_of(group: int) -> int:
    """Positions per range of keys: the more heads share them, the longer, since each range leaves a part per head."""
    return 256 if group <= 8 else 512 if group <= 32 else 1024


FIXED_SPLIT = 2048
"""Positions per range of keys where the order is fixed: also prompts leave a part per range and token."""


def fixed_tiling(key_dim: int, element_bytes: int) -> Tiling:
    """For all rows alike."""
    if _is_heavy(key_dim, element_bytes):
        return _LIGHT
    return Tiling(64, 64 if padded(key_dim) <= 128 else 32, 4, 2) if element_bytes <= 2 else Tiling(32, 32, 4, 1)
