"""What a step's result says about its rows and requests. Pure."""

from __future__ import annotations

from cache_store.errors import InvalidRequestError, UnavailableError
from worker.preemption import MAX_PREEMPTIONS
from worker.requests import Finish, Finished
from worker.sequence import ActiveRequest
from worker.step_plan import RowFailure, StepPlan, StepResult


def check_result(plan: StepPlan, result: StepResult) -> None:
    """Raises ValueError where a runner's result does not fit its plan."""
    if len(result.outcomes) != len(plan.rows):
        raise ValueError(f"the runner gave {len(result.outcomes)} outcomes for {len(plan.rows)} rows")
    if len(result.differences) != len(plan.compares):
        raise ValueError(f"the runner gave {len(result.differences)} differences for {len(plan.compares)} compares")
    for row, outcome in zip(plan.rows, result.outcomes, strict=True):
        if not isinstance(outcome, RowFailure) and len(outcome) != len(row.draws):
            raise ValueError(f"the runner gave {len(outcome)} tokens for {len(row.draws)} draws")


def hopeless(request: ActiveRequest, retry_after_s: float) -> UnavailableError:
    """Why a request ends that could only run on blocks that others are guaranteed and use; not how many those are."""
    if request.setbacks.num_preemptions < MAX_PREEMPTIONS:
        why = "the request needs more of this worker than your tenant is guaranteed, and as much cannot be had "
        why += "now; try again later, or send a shorter one"
    else:
        why = "the request ran on blocks that were lent to your tenant, has given them back and cannot have as "
        why += "many here now; try again later, or send a shorter one"
    return UnavailableError(why, retry_after_s)


def too_long_now(num_blocks: int, block_size: int) -> InvalidRequestError:
    """Why a request ends that its tenant's changed share of the worker, so many blocks, cannot hold any more."""
    return InvalidRequestError(
        "sampling.max_tokens",
        f"your tenant's share of this worker was changed to {num_blocks} blocks of {block_size} tokens, which cannot "
        "hold the request any more; a shorter one would fit",
    )


def finish_of(request: ActiveRequest, token: int, num_output: int) -> Finish | None:
    """Why a sample ends with that token; None where it goes on."""
    sampling = request.sampling
    if token in sampling.stop_token_ids and num_output > sampling.min_tokens:
        return Finish.STOP
    return Finish.LENGTH if num_output >= sampling.max_tokens else None


def finished(request: ActiveRequest, now_s: float) -> Finished:
    """The last output of a request."""
    assert request.scheduled_s is not None
    assert request.first_token_s is not None
    setbacks = request.setbacks
    return Finished(
        key=request.key,
        queue_s=request.scheduled_s - request.submitted_s,
        prefill_s=request.first_token_s - request.scheduled_s,
        decode_s=now_s - request.first_token_s,
        preemptions=setbacks.num_preemptions,
        preempted_s=setbacks.preempted_s,
        recompute_s=setbacks.recompute_s,
        recomputed_tokens=setbacks.recomputed_tokens,
        swap_s=setbacks.swap_s,
        written_tokens=request.written_tokens,
    )
