"""The status table: every error of the tree has its code and its details."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, PreconditionFailure, QuotaFailure, RetryInfo
from google.rpc.status_pb2 import Status as StatusMessage
from stemcache.v1 import inference_pb2 as pb

from cache_store import errors
from cache_store.tokens import pack
from services.router.generation import FinishReason, GenerationLostError, SampleSoFar
from services.router.statuses import DETAILS_KEY, INTERNAL_MESSAGE, abort_with, to_status

Code = grpc.StatusCode

CASES: list[tuple[Exception, grpc.StatusCode, tuple[type, ...]]] = [
    (errors.InvalidRequestError("prompt", "empty"), Code.INVALID_ARGUMENT, (BadRequest,)),
    (errors.UnauthenticatedError("no"), Code.UNAUTHENTICATED, ()),
    (errors.NotFoundError("no"), Code.NOT_FOUND, ()),
    (errors.AlreadyExistsError("no"), Code.ALREADY_EXISTS, ()),
    (errors.PreconditionError("no"), Code.FAILED_PRECONDITION, (PreconditionFailure,)),
    (errors.LimitExceededError("requests", "no", 2.0), Code.RESOURCE_EXHAUSTED, (QuotaFailure, RetryInfo)),
    (errors.UnavailableError("no", 1.5), Code.UNAVAILABLE, (RetryInfo,)),
    (errors.DeadlineError("no"), Code.DEADLINE_EXCEEDED, ()),
    (errors.WorkerLostError("no"), Code.ABORTED, ()),
    (GenerationLostError("no", ()), Code.ABORTED, (pb.PartialGeneration,)),
    (GenerationLostError("no", (), 1.0), Code.ABORTED, (pb.PartialGeneration, RetryInfo)),
    (errors.CancelledRequestError("no"), Code.CANCELLED, ()),
    (errors.VersionError("protocol", 0, 1), Code.FAILED_PRECONDITION, (PreconditionFailure,)),
    (errors.ComputationError("no"), Code.INTERNAL, ()),
    (errors.CorruptDataError("no"), Code.DATA_LOSS, ()),
    (errors.StorageError("no"), Code.INTERNAL, ()),
]


@pytest.mark.parametrize(("error", "code", "details"), CASES, ids=lambda value: getattr(value, "name", None))
def test_table(error: Exception, code: grpc.StatusCode, details: tuple[type, ...]) -> None:
    status = to_status(error)
    assert status.code is code
    assert status.message == str(error)
    assert tuple(type(detail) for detail in status.details) == details


def test_every_error_of_the_tree_has_a_row() -> None:
    kinds = {kind for kind in errors.StemcacheError.__subclasses__() if kind.__module__ == errors.__name__}
    covered = {type(error) for error, _, _ in CASES}
    assert kinds <= covered


def test_anything_else_is_internal_and_tells_nothing() -> None:
    status = to_status(RuntimeError("a prompt"))
    assert (status.code, status.message) == (Code.INTERNAL, INTERNAL_MESSAGE)


class _Context:
    def __init__(self) -> None:
        self.ended: tuple[grpc.StatusCode, str, tuple[Any, ...]] | None = None

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: tuple[Any, ...]) -> NoReturn:
        self.ended = (code, details, trailing_metadata)
        raise grpc.aio.AbortError


async def test_abort_sends_the_details_in_the_trailer() -> None:
    context: Any = _Context()
    sample = SampleSoFar(0, "ab", pack([1, 2]), FinishReason.STOP)
    with pytest.raises(grpc.aio.AbortError):
        await abort_with(context, GenerationLostError("worker lost", (sample,)))
    code, message, ((key, value),) = context.ended
    assert (code, message, key) == (Code.ABORTED, "worker lost", DETAILS_KEY)
    status = StatusMessage.FromString(value)
    assert status.code == Code.ABORTED.value[0]
    partial = pb.PartialGeneration()
    assert status.details[0].Unpack(partial)
    assert partial.completions[0].token_ids.packed == pack([1, 2])
    assert partial.completions[0].finish_reason == pb.FINISH_REASON_UNSPECIFIED


def test_bad_request_names_the_field() -> None:
    (detail,) = to_status(errors.InvalidRequestError("prompt.text", "is empty")).details
    assert isinstance(detail, BadRequest)
    assert detail.field_violations[0].field == "prompt.text"


def test_retry_info_carries_the_delay() -> None:
    (detail,) = to_status(errors.UnavailableError("later", 1.5)).details
    assert isinstance(detail, RetryInfo)
    assert detail.retry_delay.ToMilliseconds() == 1500


@pytest.mark.parametrize("num_samples", [1, 4, 16])
def test_a_long_answer_that_was_lost_fits_a_status(num_samples: int) -> None:
    made = [SampleSoFar(at, "é" * 9_001, pack(range(3_000)), None) for at in range(num_samples)]
    (partial,) = to_status(GenerationLostError("lost", tuple(made))).details
    assert isinstance(partial, pb.PartialGeneration)
    assert partial.ByteSize() < 5_000
    assert partial.completion_tokens == num_samples * 3_000
    for sample, kept in zip(made, partial.completions, strict=True):
        assert kept.text
        assert sample.text.startswith(kept.text)
        assert kept.token_ids.packed
        assert sample.tokens.startswith(kept.token_ids.packed)


def test_a_sentence_that_repeats_its_input_is_cut() -> None:
    status = to_status(errors.InvalidRequestError("model", "é" * 10_000))
    assert len(status.message.encode()) < 900
    assert status.details == (
        BadRequest(field_violations=[BadRequest.FieldViolation(field="model", description=status.message)]),
    )
