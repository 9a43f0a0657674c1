"""What fits on a worker, within what its tenant may have of the pool, and why something fits nowhere.

Pure. Knows a tenant's own part only: what is told to a caller has no number of anybody else. What can never fit is
refused here; what does not fit now waits at the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cache_store.errors import InvalidRequestError
from cache_store.quota import PoolPart
from cache_store.registry import WorkerRecord


@dataclass(frozen=True, slots=True)
class Extent:
    """How much a request needs."""

    prompt_tokens: int
    max_tokens: int
    """Of each sample."""
    num_samples: int


def answer_room(record: WorkerRecord, part: PoolPart, prompt_tokens: int, num_samples: int) -> int:
    """Most tokens that each sample of a prompt may have on a worker; 0 or less where not even the prompt fits.

    The samples run at once and share the prompt's full blocks; a sample's last token is drawn and never stored.
    """
    if num_samples > record.max_num_sequences:
        return 0
    shared_blocks, in_partial_block = divmod(prompt_tokens, record.block_size)
    own_blocks = (part.max_blocks(record.num_blocks) - shared_blocks) // num_samples
    return min(record.max_model_len - prompt_tokens, own_blocks * record.block_size - in_partial_block + 1)


def longest_prompt(record: WorkerRecord, part: PoolPart, num_samples: int) -> int:
    """The length up to which every prompt leaves room for at least one token per sample."""
    by_pool = (part.max_blocks(record.num_blocks) - num_samples + 1) * record.block_size
    return max(0, min(record.max_model_len - 1, by_pool))


def fits(record: WorkerRecord, part: PoolPart, extent: Extent) -> bool:
    """Whether the worker could hold the request, if the tenant had nothing else there."""
    return answer_room(record, part, extent.prompt_tokens, extent.num_samples) >= extent.max_tokens


def too_large(records: Sequence[WorkerRecord], part: PoolPart, extent: Extent) -> InvalidRequestError:
    """Why a request fits on none of `records`, and what would."""
    samples, prompt = extent.num_samples, extent.prompt_tokens
    places = max(record.max_num_sequences for record in records)
    if samples > places:
        return InvalidRequestError("sampling_params.n", f"n is {samples}; at most {places} samples run at once")
    limits = _limits(records, part)
    room = max(answer_room(record, part, prompt, samples) for record in records)
    if room >= 1:
        wanted = f"{samples} x {extent.max_tokens} tokens after a prompt of {prompt} do not fit"
        return InvalidRequestError(
            "sampling_params.max_tokens", f"{wanted}: {limits}; at most {room} per sample would fit"
        )
    longest = max(longest_prompt(record, part, samples) for record in records)
    return InvalidRequestError(
        "prompt",
        f"the prompt has {prompt} tokens: {limits}; with n = {samples} a prompt of up to {longest} tokens would fit",
    )


def _limits(records: Sequence[WorkerRecord], part: PoolPart) -> str:
    model_len = max(record.max_model_len for record in records)
    own = max(part.max_blocks(record.num_blocks) * record.block_size for record in records)
    return (
        f"the model reads {model_len} tokens of prompt and answer together and your part of a worker's cache is {own}"
    )
