"""Blocks on their way between tiers: what is asked for in plans, and what came of it. Plain values.

Numbers only: slots index the pool of their tier. A host slot holds a block of all cache groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NewType, Protocol

from cache_store.block_name import BlockName
from cache_store.domain import TenantId

TransferId = NewType("TransferId", int)
"""Names one spill or load of one engine; never reused."""


@dataclass(frozen=True, slots=True)
class HostStore:
    """A block of the device, copied to a host slot, which it overwrites completely."""

    slots: tuple[int, ...]
    """Per cache group; ABSENT: it has none, and its part of the host slot is scrubbed."""
    host_slot: int


@dataclass(frozen=True, slots=True)
class Spill:
    """A block of the host pool, written to disk."""

    id: TransferId
    host_slot: int
    name: BlockName
    tenant: TenantId
    is_firm: bool
    """Its tenant is strict: what others do must not make it fail."""


@dataclass(frozen=True, slots=True)
class Load:
    """A block brought back to the device."""

    id: TransferId
    tenant: TenantId
    """Whose block it is; loads of tenants take turns."""
    name: BlockName
    host_slot: int | None
    """None: from disk."""
    slots: tuple[int, ...]
    """Per cache group: where it goes. ABSENT: that group's part of it goes nowhere."""
    arrived: bytearray | None = field(default=None, repr=False, compare=False)
    """Its bytes, where they have come from another worker: it is neither in the host's memory nor on disk here."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What one plan moves between tiers, beside loads; carried out in the order of the fields, before the loads."""

    forgotten: tuple[BlockName, ...] = ()
    """Blocks to remove from disk; a spill of such a name writes it anew."""
    spills: tuple[Spill, ...] = ()
    """The host slot may be overwritten as soon as the plan's run goes on; the write itself ends later."""
    host_scrubs: tuple[int, ...] = ()
    """Host slots to overwrite."""
    stores: tuple[HostStore, ...] = ()
    """Done when the run of the plan returns."""
    forgotten_domains: tuple[bytes, ...] = ()
    """Roots of domains of which everything goes from disk, and the key with it."""

    def __bool__(self) -> bool:
        return bool(self.spills or self.host_scrubs or self.stores or self.forgotten or self.forgotten_domains)


NO_MOVES = Moves()


@dataclass(frozen=True, slots=True)
class TransferResult:
    """How a spill or load ended."""

    id: TransferId
    ok: bool
    """False: nothing was written, or what was read is not the block that was asked for. The device block then holds
    anything."""
    seconds: float
    """From its start to its end, its time in a queue not counted."""


class Transfers(Protocol):
    """What a runner has below its device. Called by the engine's thread."""

    @property
    def num_host_blocks(self) -> int:
        """Host slots; 0 without a host tier."""
        ...

    @property
    def num_disk_blocks(self) -> int:
        """Blocks that fit on disk; 0 without a disk tier."""
        ...

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of all cache groups; 0: they can be neither read here nor brought from elsewhere."""
        ...

    def read_device(self, slots: tuple[int, ...], into: memoryview) -> None:
        """Copies a block of the device into a buffer of `block_bytes`; between two steps. One slot per cache group."""
        ...

    def read_host(self, host_slot: int, into: memoryview) -> None:
        """The same of a host slot whose store has ended."""
        ...

    def finished(self) -> tuple[TransferResult, ...]:
        """Spills and loads that ended since the last call: each of a plan exactly once, whatever its `run` raised."""
        ...

    def notify(self, wake: Callable[[], None]) -> None:
        """`wake` is called, on any thread, when something has finished."""
        ...

    def close(self) -> None:
        """Ends what runs in the background; what it kept on disk is removed. Idempotent."""
        ...


class NoTransfers:
    """`Transfers` of a runner with its device only."""

    @property
    def num_host_blocks(self) -> int:
        return 0

    @property
    def num_disk_blocks(self) -> int:
        return 0

    @property
    def block_bytes(self) -> int:
        return 0

    def read_device(self, slots: tuple[int, ...], into: memoryview) -> None:
        raise AssertionError(f"a runner that moves no blocks is asked for slots {slots}, into {len(into)} bytes")

    def read_host(self, host_slot: int, into: memoryview) -> None:
        raise AssertionError(f"a runner that moves no blocks is asked for host slot {host_slot}, {len(into)} bytes")

    def finished(self) -> tuple[TransferResult, ...]:
        return ()

    def notify(self, wake: Callable[[], None]) -> None:
        """Never calls it."""

    def close(self) -> None:
        """Has nothing to end."""
