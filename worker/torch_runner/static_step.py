"""A step of decoding rows in buffers that stay where they are, so that a recorded forward finds every step in them.

Rows up to the bucket's size are padding: they write nowhere, read nothing, and nobody looks at what they give. Owned by
one runner; a step's arrays are copied to the device without anybody waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.torch_runner.step_batch import StepBatch
from worker.torch_runner.triton_launch import DeviceWork
from worker.torch_runner.triton_work import GroupWork, StepWork
from worker.torch_runner.work_items import ITEM_FIELDS, Words, Work

_TOKEN_FIELDS = 3
"""Per token: its id, its position, its place in its block."""
_GROUP_FIELDS = 4
"""Per token and cache group: its slot; first, distance and number of its parts."""


@dataclass(frozen=True, slots=True)
class StepRoom:
    """The largest step that fits."""

    num_rows: int
    table_words: int
    """Of all rows' block tables in one group."""
    num_items: int
    """Of one group."""


class Mirrored:
    """Words on the device and the same on the host, from which they are copied."""

    def __init__(self, num_words: int, device: torch.device) -> None:
        self._staging = torch.zeros(num_words, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.words = self._staging.numpy()
        self.device = torch.zeros(num_words, dtype=torch.int32, device=device)

    def send(self, num_words: int) -> None:
        """Copies the first words."""
        self.device[:num_words].copy_(self._staging[:num_words], non_blocking=True)


class StaticStep:
    """The buffers."""

    def __init__(self, num_groups: int, room: StepRoom, num_programs: tuple[int, ...], device: torch.device) -> None:
        """`num_programs` per group: those that share its items, for each key head."""
        self.room = room
        self._num_programs = num_programs
        self._num_groups = num_groups
        self._num_fields = _TOKEN_FIELDS + _GROUP_FIELDS * num_groups
        self._head = Mirrored((self._num_fields + 1) * max(room.num_rows, num_groups), device)
        self._tables = [Mirrored(room.table_words, device) for _ in range(num_groups)]
        self._items = [Mirrored(room.num_items * ITEM_FIELDS, device) for _ in range(num_groups)]
        self._sent = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch's

    def fits(self, batch: StepBatch, works: list[Work]) -> bool:
        """Whether there is room for the step."""
        return (
            len(batch.lengths) <= self.room.num_rows
            and all(group.tables.size <= self.room.table_words for group in batch.groups)
            and all(len(work.items) <= self.room.num_items for work in works)
        )

    def fill(self, batch: StepBatch, works: list[Work]) -> None:
        """Puts a step of decoding rows that fits into the buffers; what follows on the device's stream sees it."""
        if self._sent is not None:
            self._sent.synchronize()  # of the step before: long done where anybody looked at its result
        num_rows = len(batch.lengths)
        head = self._fields(self._head.words)
        head[:] = 0
        for field, values in enumerate((batch.token_ids, batch.positions, batch.token_offsets)):
            head[field, :num_rows] = values
        for index, (group, work) in enumerate(zip(batch.groups, works, strict=True)):
            first = _TOKEN_FIELDS + _GROUP_FIELDS * index
            head[first] = -1
            head[first, :num_rows] = group.token_blocks
            head[first + 1 : first + _GROUP_FIELDS, :num_rows] = work.parts
            head[self._num_fields, index] = len(work.items)
            for mirrored, words in ((self._tables[index], group.tables), (self._items[index], work.items.reshape(-1))):
                mirrored.words[: words.size] = words
                mirrored.send(words.size)
        self._head.send(head.size)
        if self._sent is not None:
            self._sent.record()

    def clear(self) -> None:
        """A step of padding only."""
        head = self._fields(self._head.words)
        head[:] = 0
        for index in range(self._num_groups):
            head[_TOKEN_FIELDS + _GROUP_FIELDS * index] = -1
        self._head.send(head.size)

    def tokens(self, bucket: int) -> tuple[Tensor, Tensor]:
        """Ids and positions [bucket] of the step's tokens."""
        head = self._head.device.view(self._num_fields + 1, -1)
        return head[0, :bucket], head[1, :bucket]

    def work(self, bucket: int) -> StepWork:
        """What the step asks of a forward over `bucket` rows."""
        head = self._head.device.view(self._num_fields + 1, -1)
        groups = []
        for index in range(self._num_groups):
            first = _TOKEN_FIELDS + _GROUP_FIELDS * index
            decode = DeviceWork(
                items=self._items[index].device.view(-1, ITEM_FIELDS),
                num_items=head[self._num_fields, index : index + 1],
                parts=head[first + 1 : first + _GROUP_FIELDS, :bucket],
                num_parts=self.room.num_items,
                num_programs=self._num_programs[index],
            )
            groups.append(GroupWork(self._tables[index].device, head[first, :bucket], decode, None))
        return StepWork(head[2, :bucket], tuple(groups), ())

    def _fields(self, words: Words) -> Words:
        return words.reshape(self._num_fields + 1, -1)
