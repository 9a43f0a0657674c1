"""The KV tensors: one block-major pool per cache group, and the writes that a step asks for before its forward.

Owned by one runner and its thread. Knows slots, not whose they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cache_store.errors import InvalidRequestError
from worker.model_files.layers import GroupShape
from worker.step_plan import SlotCopy, SlotRef


def block_bytes(blocks: Tensor) -> Tensor:
    """The same memory as [blocks, bytes of one block]."""
    return blocks.flatten(1).view(torch.uint8)


class GroupPool:
    """Blocks of one group: [num_blocks, layers, 2 (keys, values), block_size, kv_heads, head_dim], contiguous."""

    def __init__(
        self, shape: GroupShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device, fill: float
    ) -> None:
        size = (num_blocks, len(shape.layers), 2, block_size, shape.num_kv_heads, shape.head_dim)
        self.shape = shape
        self.fill = fill
        self.blocks = torch.full(size, fill, dtype=dtype, device=device)
        self._views = [(self.blocks[:, place, 0], self.blocks[:, place, 1]) for place in range(len(shape.layers))]

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.blocks.shape[3]

    def layer(self, place: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the group's layer number `place`: views [num_blocks, block_size, kv_heads, head_dim]."""
        return self._views[place]

    def scrub(self, slots: Sequence[int]) -> None:
        """Overwrites whole blocks."""
        self.blocks.index_fill_(0, torch.tensor(slots, device=self.blocks.device), self.fill)

    def copy(self, copy: SlotCopy) -> None:
        """Copies the first tokens of a block, in all layers."""
        self.blocks[copy.target, :, :, : copy.num_tokens] = self.blocks[copy.source, :, :, : copy.num_tokens]


class KvPools:
    """The pools of all groups, with the same number of blocks each."""

    def __init__(
        self,
        groups: tuple[GroupShape, ...],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        fill: float,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise InvalidRequestError("num_blocks", f"a pool needs blocks and tokens, not {num_blocks} × {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.device = device
        self.groups = tuple(GroupPool(shape, num_blocks, block_size, dtype, device, fill) for shape in groups)
        self._places = {
            layer: (group, place) for group, shape in enumerate(groups) for place, layer in enumerate(shape.layers)
        }

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors' storage."""
        return sum(group.blocks.untyped_storage().nbytes() for group in self.groups)

    def poison_block(self) -> Tensor:
        """Bytes [bytes of a block in all groups] of a block of nothing but the fill, on the CPU."""
        blocks = [torch.full_like(group.blocks[:1], group.fill, device="cpu") for group in self.groups]
        return torch.cat([block_bytes(block)[0] for block in blocks])

    def place(self, layer: int) -> tuple[int, int]:
        """Group of a model's layer, and its number inside the group."""
        return self._places[layer]

    def scrub(self, scrubs: Sequence[SlotRef]) -> None:
        """Executes a step's scrubs."""
        for index, group in enumerate(self.groups):
            slots = [ref.slot for ref in scrubs if ref.group == index]
            if slots:
                group.scrub(slots)

    def copy(self, copies: Sequence[SlotCopy]) -> None:
        """Executes a step's copies."""
        for copy in copies:
            self.groups[copy.group].copy(copy)
