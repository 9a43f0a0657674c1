"""Transfers as a runner drives them: the engine sees the numbers (`cache_store/transfers.py`), a runner moves bytes.

A runner with lower tiers is made with a `MakeMover`, which gets the copier of its pools. In `run` it calls `move`
before its scrubs, `load` after them, and `give_up` where anything raises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from cache_store.block_name import BlockName
from cache_store.transfers import Load, Moves, NoTransfers, Transfers
from worker.block_copier import BlockCopier
from worker.step_plan import StepPlan


class Mover(Transfers, Protocol):
    """Called by the engine's thread."""

    def move(self, moves: Moves) -> None:
        """Carries out a plan's moves: when it returns all host slots are as the plan says."""
        ...

    def load(self, loads: Sequence[Load]) -> None:
        """Starts a plan's loads in the background."""
        ...

    def give_up(self, plan: StepPlan) -> None:
        """The plan's run raised: spills and loads that were not begun end as failed. What is forgotten stays so."""
        ...


MakeMover = Callable[[BlockCopier], Mover]


class DiskFiles(Protocol):
    """Blocks on disk, as `cache_store/block_files.py` keeps them. One thread writes and removes, another reads."""

    def write(self, name: BlockName, data: bytearray) -> None:
        """Keeps a block. Raises OSError or StemcacheError where it cannot."""
        ...

    def read_into(self, name: BlockName, target: bytearray) -> None:
        """Its bytes. Raises a StemcacheError where it is not there whole, or is another block's; anything is in
        `target` then.
        """
        ...

    def prefetch(self, names: Sequence[BlockName]) -> None:
        """Blocks that will be read soon, there or not. Returns at once."""
        ...

    def remove(self, name: BlockName) -> None:
        """Forgets a block, there or not."""
        ...

    def remove_domains(self, roots: Collection[bytes]) -> None:
        """Forgets all blocks of these domains."""
        ...


class DeviceOnly(NoTransfers):
    """`Mover` of a runner without lower tiers."""

    def move(self, moves: Moves) -> None:
        assert not moves, "a runner without lower tiers is told to move blocks"

    def load(self, loads: Sequence[Load]) -> None:
        assert not loads, "a runner without lower tiers is told to load blocks"

    def give_up(self, plan: StepPlan) -> None:
        """Began nothing."""
