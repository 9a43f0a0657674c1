"""What the engine asks of whatever computes: the token-digest runner, the paged and the contiguous torch runner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from cache_store.adapter_files import AdapterContent
from cache_store.domain import AdapterDigest, FormatDigest, KvFormat
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
    tolerance: float = 0.0
    """By how much keys and values that are computed again may differ (`StepResult.differences`)."""

    def format_with(self, adapter: AdapterDigest) -> FormatDigest:
        """Of keys and values that the model computes with that adapter, or with none."""
        return replace(self.kv_format, adapter_digest=adapter).digest()


@dataclass(frozen=True, slots=True)
class PreparedAdapter:
    """An adapter that fits the model, ready to be attached."""

    digest: AdapterDigest
    weights: object
    """The runner's own."""


class Runner(Protocol):
    """Owns the tensors; called by the engine thread only."""

    @property
    def info(self) -> ModelInfo:
        """The model. Constant."""
        ...

    @property
    def num_blocks(self) -> int:
        """Blocks that it can tell apart. Constant."""
        ...

    @property
    def num_slots(self) -> tuple[int, ...]:
        """Slots in each group's pool: one for every block, or fewer in sliding groups. Constant."""
        ...

    @property
    def transfers(self) -> Transfers:
        """What it has below its device. Constant."""
        ...

    def prepare_adapter(self, content: AdapterContent) -> PreparedAdapter:
        """Checks an adapter against the model and makes what attaching needs; on any thread, beside steps.

        Raises InvalidRequestError, which says what does not fit.
        """
        ...

    def attach_adapter(self, adapter: PreparedAdapter) -> None:
        """From now on rows may name it. Takes no time."""
        ...

    def detach_adapter(self, adapter: AdapterDigest) -> None:
        """Lets go of its weights: no row names it any more."""
        ...

    def run(self, plan: StepPlan) -> StepResult:
        """Executes a step. An exception means that nothing of the step may be used: the engine fails its requests."""
        ...
