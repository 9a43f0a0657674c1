"""Limits of an engine and the check of a request against them and against the model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cache_store.audit_mode import AuditMode
from cache_store.errors import InvalidRequestError
from cache_store.policies.choice import PolicyKind
from cache_store.tokens import count, unpack
from worker.requests import EngineRequest
from worker.runner import ModelInfo


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine. Raises ValueError, naming the setting, for values that cannot work."""

    num_step_tokens: int = 512
    """Budget of new tokens per step."""
    num_max_sequences: int = 64
    """Samples that run at once."""
    num_max_waiting: int = 256
    """Requests that wait for their first step; one more waits only where its tenant has less than its part of them."""
    eviction_policy: PolicyKind = PolicyKind.CLASS
    """Which of a tenant's cached blocks go first."""
    audit: AuditMode = AuditMode.SAMPLED
    watermark: float = 0.01
    """Share of its tenant's maximum that an admission leaves free beside running sequences, so that they can grow."""

    def __post_init__(self) -> None:
        if self.num_max_sequences < 1:
            raise ValueError(f"num_max_sequences is at least 1, not {self.num_max_sequences}")
        if self.num_step_tokens < self.num_max_sequences:
            raise ValueError(
                f"num_step_tokens ({self.num_step_tokens}) is at least num_max_sequences ({self.num_max_sequences}): "
                "every sequence that decodes takes one token of each step"
            )
        if self.num_max_waiting < 1:
            raise ValueError(f"num_max_waiting is at least 1, not {self.num_max_waiting}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark is in [0, 1), not {self.watermark}")

    def watermark_blocks(self, num_blocks: int) -> int:
        """Blocks that an admission leaves free of `num_blocks`, a tenant's maximum."""
        return math.ceil(self.watermark * num_blocks)


def check_request(request: EngineRequest, info: ModelInfo, config: EngineConfig) -> None:
    """Raises InvalidRequestError where this model can never serve the request; says what would work."""
    _check_prompt(request, info)
    _check_samples(request, config)
    _check_length(request, info)


def check_room(request: EngineRequest, block_size: int, num_blocks: int, max_blocks: int) -> None:
    """Raises InvalidRequestError where the request needs more than `max_blocks` of the pool's `num_blocks`.

    They are what its tenant may have at most.
    """
    num_prompt, max_tokens, num_samples = count(request.prompt), request.sampling.max_tokens, request.num_samples
    num_shared = num_prompt // block_size
    num_own = -(-(num_prompt + max_tokens - 1) // block_size) - num_shared  # the last token is drawn, never stored
    num_needed = num_shared + num_samples * num_own
    if num_needed <= max_blocks:
        return
    what = (
        f"a prompt of {num_prompt} tokens with max_tokens {max_tokens} and {num_samples} samples needs {num_needed} "
        f"blocks of {block_size} tokens, "
    )
    what += f"the worker has {num_blocks}" if max_blocks == num_blocks else f"your tenant's share is {max_blocks}"
    room = (num_shared + max(0, max_blocks - num_shared) // num_samples) * block_size - num_prompt + 1
    if room < 1:
        raise InvalidRequestError("prompt", f"{what}; a shorter prompt or fewer samples would fit")
    raise InvalidRequestError("sampling.max_tokens", f"{what}; max_tokens up to {room} would fit")


def _check_prompt(request: EngineRequest, info: ModelInfo) -> None:
    if not request.prompt:
        raise InvalidRequestError("prompt", "the prompt is empty; it needs at least one token")
    largest = max(unpack(request.prompt))
    if largest >= info.vocab_size:
        raise InvalidRequestError(
            "prompt", f"token id {largest} is outside the vocabulary; ids of {info.name} are 0 to {info.vocab_size - 1}"
        )


def _check_samples(request: EngineRequest, config: EngineConfig) -> None:
    if not 1 <= request.num_samples <= config.num_max_sequences:
        raise InvalidRequestError(
            "sampling.n",
            f"{request.num_samples} samples are asked for; 1 to {config.num_max_sequences} can run at once",
        )
    if request.sampling.max_tokens < 1:
        raise InvalidRequestError("sampling.max_tokens", f"max_tokens is at least 1, not {request.sampling.max_tokens}")


def _check_length(request: EngineRequest, info: ModelInfo) -> None:
    num_prompt, max_tokens = count(request.prompt), request.sampling.max_tokens
    room = info.max_model_len - num_prompt
    if max_tokens <= room:
        return
    what = f"a prompt of {num_prompt} tokens and max_tokens {max_tokens} exceed the model's {info.max_model_len} tokens"
    if room < 1:
        raise InvalidRequestError("prompt", f"{what}; a prompt of at most {info.max_model_len - 1} tokens would fit")
    raise InvalidRequestError("sampling.max_tokens", f"{what}; max_tokens up to {room} would fit")
