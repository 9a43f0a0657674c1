"""The KV tensors: one block-major pool per cache group, and the writes that a step asks for before its forward.

Owned by one runner and its thread. Knows slots, not whose they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cache_store.errors import InvalidRequestError
from cache_store.kv_layout import GroupShape, KvDtype
from worker.step_plan import SlotCopy, SlotRef
from worker.torch_runner.huge_pages import HugePages

_TORCH_DTYPES = {
    KvDtype.FLOAT32: torch.float32,
    KvDtype.BFLOAT16: torch.bfloat16,
    KvDtype.FLOAT16: torch.float16,
    KvDtype.INT8: torch.int8,
    KvDtype.FLOAT8: torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class LayerPool:
    """What one layer has in the slots of its group: views."""

    keys: Tensor
    """[num_slots, block_size, kv_heads, key_dim]; latent vectors in a latent group."""
    values: Tensor
    """[num_slots, block_size, kv_heads, value_dim]; of no width in a latent group."""
    key_scales: Tensor | None
    """float32 [num_slots, block_size, kv_heads]: a key is its elements times its scale. None without scales."""
    value_scales: Tensor | None
    """The same for values; None also in a latent group."""


class GroupPool:
    """Slots of one group, laid out as `cache_store/kv_layout.py` says."""

    def __init__(
        self, shape: GroupShape, num_slots: int, block_size: int, dtype: KvDtype, device: torch.device, fill: float
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.fill = fill
        self.block_size = block_size
        """Tokens per block."""
        size = (num_slots, shape.bytes_per_block(block_size, dtype))
        self.bytes = (
            HugePages().empty(size, torch.uint8)
            if device.type == "cpu"
            else torch.empty(size, dtype=torch.uint8, device=device)
        )
        """[num_slots, bytes of one block], contiguous; the tensors below are views of it."""
        width = shape.num_kv_heads * block_size
        typed = self.bytes.view(_TORCH_DTYPES[dtype])
        self.keys = self._part(typed, 0, shape.key_dim)
        """[num_slots, layers, block_size, kv_heads, key_dim]."""
        self.values = self._part(typed, width * shape.key_dim, shape.value_dim)
        """[num_slots, layers, block_size, kv_heads, value_dim]."""
        self.key_scales: Tensor | None = None
        """[num_slots, layers, block_size, kv_heads], or None."""
        self.value_scales: Tensor | None = None
        """The same for values."""
        if dtype.scale_bytes:
            scales = self.bytes.view(torch.float32)
            first = shape.element_bytes(block_size, dtype) // dtype.scale_bytes
            self.key_scales = self._part(scales, first, 1)[..., 0]
            if shape.value_dim:
                self.value_scales = self._part(scales, first + width, 1)[..., 0]
        self._layers = [self._layer(place) for place in range(len(shape.layers))]
        self._wipe(None)

    def layer(self, place: int) -> LayerPool:
        """Of the group's layer number `place`."""
        return self._layers[place]

    def scrub(self, slots: Sequence[int]) -> None:
        """Overwrites whole blocks."""
        self._wipe(torch.tensor(slots, device=self.bytes.device))

    def copy(self, copy: SlotCopy) -> None:
        """Copies the first tokens of a block, in all layers."""
        for part in self.parts():
            part[copy.target, :, : copy.num_tokens] = part[copy.source, :, : copy.num_tokens]

    def poison(self) -> Tensor:
        """Bytes of a block of nothing but the fill, on the CPU."""
        block = GroupPool(self.shape, 1, self.block_size, self.dtype, torch.device("cpu"), self.fill)
        return block.bytes[0]

    def parts(self) -> list[Tensor]:
        """Keys, values and their scales: views [num_slots, layers, block_size, ...]."""
        scales = (part for part in (self.key_scales, self.value_scales) if part is not None)
        return [self.keys, self.values, *scales]

    def _part(self, typed: Tensor, first: int, width: int) -> Tensor:
        """View of `width` elements per token and head, which begin at element `first` of each layer."""
        num_slots, per_block = typed.shape
        num_layers, num_heads = len(self.shape.layers), self.shape.num_kv_heads
        size = (num_slots, num_layers, self.block_size, num_heads, width)
        return typed.as_strided(size, (per_block, per_block // num_layers, num_heads * width, width, 1), first)

    def _layer(self, place: int) -> LayerPool:
        key_scales = None if self.key_scales is None else self.key_scales[:, place]
        value_scales = None if self.value_scales is None else self.value_scales[:, place]
        return LayerPool(self.keys[:, place], self.values[:, place], key_scales, value_scales)

    def _wipe(self, slots: Tensor | None) -> None:
        """Fills slots, or all: elements with the fill, or with zeros below scales of the fill."""
        index = slice(None) if slots is None else slots
        if not self.dtype.scale_bytes:
            self.bytes.view(_TORCH_DTYPES[self.dtype])[index] = self.fill
            return
        self.bytes[index] = 0
        for scales in (self.key_scales, self.value_scales):
            if scales is not None:
                scales[index] = self.fill


class KvPools:
    """The pools of all groups."""

    def __init__(
        self,
        groups: tuple[GroupShape, ...],
        num_slots: tuple[int, ...],
        block_size: int,
        dtype: KvDtype,
        device: torch.device,
        fill: float,
    ) -> None:
        """`num_slots` per group; `fill` is what slots hold that nothing was written to, or that were scrubbed."""
        if min(num_slots) < 1 or block_size < 1:
            raise InvalidRequestError(
                "num_blocks", f"a pool needs blocks and tokens, not {min(num_slots)} × {block_size}"
            )
        self.block_size = block_size
        self.device = device
        self.groups = tuple(
            GroupPool(shape, num, block_size, dtype, device, fill) for shape, num in zip(groups, num_slots, strict=True)
        )
        self._places = {
            layer: (group, place) for group, shape in enumerate(groups) for place, layer in enumerate(shape.layers)
        }

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors' storage."""
        return sum(group.bytes.untyped_storage().nbytes() for group in self.groups)

    def poison_block(self) -> Tensor:
        """Bytes [bytes of a block in all groups] of a block of nothing but the fill, on the CPU."""
        return torch.cat([group.poison() for group in self.groups])

    def place(self, layer: int) -> tuple[int, int]:
        """Group of a model's layer, and its number inside the group."""
        return self._places[layer]

    def layer(self, layer: int) -> LayerPool:
        """What a model's layer has."""
        group, place = self._places[layer]
        return self.groups[group].layer(place)

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
