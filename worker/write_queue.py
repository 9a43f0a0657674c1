"""What waits to be done on disk, in order. What belongs to a domain that is dropped does not wait: it is taken out.

Filled by the engine's thread, emptied by one other.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Container
from dataclasses import dataclass

from cache_store.block_name import BlockName
from cache_store.domain import TenantId
from cache_store.transfers import Spill, TransferId


@dataclass(frozen=True, slots=True)
class Write:
    """A block that was copied to a buffer."""

    id: TransferId
    name: BlockName
    buffer: bytearray
    tenant: TenantId
    is_firm: bool
    """Nobody else's may take its place."""


@dataclass(frozen=True, slots=True)
class Remove:
    """A block that is not wanted any more."""

    name: BlockName


class WriteQueue:
    """First in, first out."""

    def __init__(self) -> None:
        self._waiting: deque[Write | Remove] = deque()
        self._current: Write | Remove | None = None
        self._is_void = False
        self._is_closed = False
        self._changed = threading.Condition()

    def put(self, item: Write | Remove) -> None:
        """To the end."""
        with self._changed:
            self._waiting.append(item)
            self._changed.notify()

    def make_way(self, spill: Spill) -> Write | None:
        """Takes out the newest write of the tenant that has most waiting, so that `spill` finds a buffer.

        None where it has no more than the spill's tenant, which is asked for only where that is not strict, or all that
        wait are firm.
        """
        with self._changed:
            writes = [item for item in self._waiting if isinstance(item, Write) and not item.is_firm]
            nums = Counter(write.tenant for write in writes)
            own = nums.pop(spill.tenant, 0)
            tenant = max(nums, key=nums.__getitem__, default=None)
            if tenant is None or (nums[tenant] <= own + 1 and not spill.is_firm):
                return None
            write = next(write for write in reversed(writes) if write.tenant == tenant)
            self._waiting.remove(write)
            return write

    def take(self) -> Write | Remove | None:
        """The next one; waits for it. None after `close`."""
        with self._changed:
            self._current = None
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if not self._is_closed:
                self._current, self._is_void = self._waiting.popleft(), False
            return self._current

    def is_void(self) -> bool:
        """Whether the domain of what was taken last has been dropped since."""
        with self._changed:
            return self._is_void

    def drop(self, roots: Container[bytes]) -> list[Write]:
        """Takes out everything of these domains; their writes, which will not be done."""
        with self._changed:
            if self._current is not None and self._current.name.root in roots:
                self._is_void = True
            dropped = [item for item in self._waiting if item.name.root in roots]
            if dropped:
                self._waiting = deque(item for item in self._waiting if item.name.root not in roots)
            return [item for item in dropped if isinstance(item, Write)]

    def close(self) -> None:
        """Nothing is given out any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
