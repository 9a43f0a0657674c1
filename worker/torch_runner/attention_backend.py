"""What the paged runner asks of an implementation of attention over its pools."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from worker.torch_runner.hook import LayerAttention
from worker.torch_runner.pools import KvPools
from worker.torch_runner.step_batch import StepBatch


class Order(StrEnum):
    """Whether the order of additions may depend on the batch."""

    FREE = "free"
    """Results differ by rounding with threads and with the step's other rows."""
    FIXED = "fixed"
    """By position only: the bits of a row depend on nothing but its own query, keys and values."""


class AttentionBackend(Protocol):
    """Makes, for one step, the attention of all layers over paged keys and values."""

    @property
    def name(self) -> str:
        """For logs and diagnosis."""
        ...

    def begin(self, pools: KvPools, batch: StepBatch) -> LayerAttention:
        """Valid for one forward over `batch`; writes the step's keys and values to `pools` as layers call it."""
        ...
