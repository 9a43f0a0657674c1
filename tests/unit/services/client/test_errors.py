"""What a failed call tells its caller."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2
from stemcache.v1 import inference_pb2 as pb

from cache_store.errors import StemcacheError
from services.client import (
    ApiAbortedError,
    ApiConflictError,
    ApiDeadlineError,
    ApiError,
    ApiInvalidRequestError,
    ApiLimitError,
    ApiNotFoundError,
    ApiUnauthenticatedError,
    FieldViolation,
    FinishReason,
    GenerationRequest,
    QuotaViolation,
    StemcacheClient,
)
from tests.support.scripted_api import Failure, ScriptedApi


def _failed(api: ScriptedApi, failure: Failure) -> ApiError:
    api.failures = [failure]
    with StemcacheClient(api.address, "key") as client, pytest.raises(ApiError) as raised:
        client.generate(GenerationRequest("text"))
    assert isinstance(raised.value, StemcacheError)
    return raised.value


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (code_pb2.INVALID_ARGUMENT, ApiInvalidRequestError),
        (code_pb2.UNAUTHENTICATED, ApiUnauthenticatedError),
        (code_pb2.PERMISSION_DENIED, ApiUnauthenticatedError),
        (code_pb2.NOT_FOUND, ApiNotFoundError),
        (code_pb2.ALREADY_EXISTS, ApiConflictError),
        (code_pb2.FAILED_PRECONDITION, ApiConflictError),
        (code_pb2.RESOURCE_EXHAUSTED, ApiLimitError),
        (code_pb2.DEADLINE_EXCEEDED, ApiDeadlineError),
        (code_pb2.ABORTED, ApiAbortedError),
        (code_pb2.INTERNAL, ApiError),
    ],
)
def test_status_decides_the_type(api: ScriptedApi, code: int, kind: type[ApiError]) -> None:
    error = _failed(api, Failure(code, "why"))
    assert type(error) is kind
    assert error.code.value[0] == code
    assert str(error) == error.message == "why"


def test_details_of_a_limit(api: ScriptedApi) -> None:
    quota = error_details_pb2.QuotaFailure(
        violations=[error_details_pb2.QuotaFailure.Violation(subject="concurrency", description="8 of 8 run")]
    )
    retry = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000))
    details = _failed(api, Failure(code_pb2.RESOURCE_EXHAUSTED, "too many", (quota, retry))).details
    assert details.retry_after_s == 1.5
    assert details.quota_violations == (QuotaViolation("concurrency", "8 of 8 run"),)


def test_details_of_bad_input(api: ScriptedApi) -> None:
    bad = error_details_pb2.BadRequest(
        field_violations=[error_details_pb2.BadRequest.FieldViolation(field="prompt", description="is empty")]
    )
    details = _failed(api, Failure(code_pb2.INVALID_ARGUMENT, "bad", (bad,))).details
    assert details.field_violations == (FieldViolation("prompt", "is empty"),)
    assert details.retry_after_s is None


def test_partial_generation_of_an_aborted_request(api: ScriptedApi) -> None:
    completion = pb.Completion(text="half", token_ids=pb.TokenIds(packed=b"\x01\0\0\0"))
    partial = pb.PartialGeneration(completions=[completion])
    error = _failed(api, Failure(code_pb2.ABORTED, "the worker was lost", (partial,)))
    (sample,) = error.details.partial
    assert (sample.text, sample.token_ids, sample.finish_reason) == ("half", (1,), FinishReason.UNFINISHED)


def test_unreadable_details_leave_code_and_message(api: ScriptedApi) -> None:
    broken = Failure(code_pb2.NOT_FOUND, "absent")
    api.raw_details = b"\xff\xff"
    error = _failed(api, broken)
    assert error.code is grpc.StatusCode.NOT_FOUND
    assert error.details.field_violations == ()
