"""What the engine asks of whatever computes: the token-digest runner, the paged and the contiguous torch runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cache_store.domain import KvFormat
from cache_store.groups import CacheGeometry
from cache_store.transfers import Transfers
from worker.step_plan import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the rest of the worker knows of a model."""

    name: str
    kv_format: KvFormat
    geometry: CacheGeometry
    vocab_size: int
    max_model_len: int
    """Most tokens of prompt and answer together."""
    eos_token_ids: tuple[int, ...]
    tokenizer_digest: str
    """Hex digest of the tokenizer files; empty for a runner without text."""


class Runner(Protocol):
    """Owns the tensors; called by the engine thread only."""

    @property
    def info(self) -> ModelInfo:
        """The model. Constant."""
        ...

    @property
    def num_blocks(self) -> int:
        """Blocks in each group's pool. Constant."""
        ...

    @property
    def transfers(self) -> Transfers:
        """What it has below its device. Constant."""
        ...

    def run(self, plan: StepPlan) -> StepResult:
        """Executes a step. An exception means that nothing of the step may be used: the engine fails its requests."""
        ...
