"""Copies and scrubs of blocks by Triton: all of a step in one launch per cache group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from worker.step_plan import SlotCopy, SlotRef
from worker.torch_runner.pools import GroupPool, KvPools
from worker.torch_runner.step_upload import upload
from worker.torch_runner.triton_kernels.blocks import copy_tokens, scrub

_TILE = 4096
"""Words per step of a program."""


class TritonBlocks:
    """Writes to pools before a forward. Belongs to the pools' runner."""

    def __init__(self, pools: KvPools) -> None:
        self._device = pools.device
        self._groups = tuple(_GroupBlocks(group) for group in pools.groups)

    def scrub(self, scrubs: Sequence[SlotRef]) -> None:
        """Executes a step's scrubs."""
        for index, group in enumerate(self._groups):
            slots = [ref.slot for ref in scrubs if ref.group == index]
            if slots:
                group.scrub(upload([np.array(slots, np.int32)], self._device)[0])

    def copy(self, copies: Sequence[SlotCopy]) -> None:
        """Executes a step's copies."""
        for index, group in enumerate(self._groups):
            wanted = [(copy.source, copy.target, copy.num_tokens) for copy in copies if copy.group == index]
            if wanted:
                group.copy(upload([np.array(wanted, np.int32)], self._device)[0])


class _GroupBlocks:
    """The blocks of one group as words of 4 bytes, or of one where its parts do not begin at such."""

    def __init__(self, group: GroupPool) -> None:
        parts = [part for part in group.parts() if part.shape[-1]]
        starts_and_bytes = [pair for part in parts for pair in _regions(part)]
        word = torch.int32 if all(number % 4 == 0 for pair in starts_and_bytes for number in pair) else torch.uint8
        self._words = group.bytes.view(word)
        regions = np.array(starts_and_bytes, np.int32) // word.itemsize
        self._regions = torch.from_numpy(regions).to(group.bytes.device)
        self._poison = group.poison().to(group.bytes.device).view(word)

    def scrub(self, slots: Tensor) -> None:
        block_words = self._words.shape[1]
        scrub[(len(slots), -(-block_words // _TILE))](self._words, slots, self._poison, block_words, tile=_TILE)

    def copy(self, copies: Tensor) -> None:
        grid = (len(copies), len(self._regions))
        copy_tokens[grid](self._words, copies, self._regions, self._words.shape[1], tile=_TILE)


def _regions(part: Tensor) -> list[tuple[int, int]]:
    """First byte in a block, and bytes per token, of each layer of a part [slots, layers, block_size, ...]."""
    first, per_layer, per_token = (
        int(number) * part.element_size() for number in (part.storage_offset(), part.stride(1), part.stride(2))
    )
    return [(first + layer * per_layer, per_token) for layer in range(part.shape[1])]
