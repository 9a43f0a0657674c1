"""The worker's table from errors to statuses is complete, and shows nothing that it should not."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from cache_store import errors
from cache_store.registry import LEAVING_REASON
from worker.statuses import to_status


def all_errors() -> list[errors.StemcacheError]:
    """One of each."""
    special: dict[type[errors.StemcacheError], errors.StemcacheError] = {
        errors.InvalidRequestError: errors.InvalidRequestError("prompt", "why"),
        errors.LimitExceededError: errors.LimitExceededError("rate", "why", 1.5),
        errors.UnavailableError: errors.UnavailableError("why", 1.5),
        errors.LeavingError: errors.LeavingError("why", 1.5),
        errors.VersionError: errors.VersionError("wire", 1, 2),
    }
    ours = (kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not errors.StemcacheError)
    return [special.get(kind) or kind("why") for kind in ours]


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: type(error).__name__)
def test_every_error_has_a_status_with_its_sentence(error: errors.StemcacheError) -> None:
    status = to_status(error)
    assert status.code not in (grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN)
    assert status.details == str(error)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequestError("f", "w"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.UnauthenticatedError("w"), grpc.StatusCode.UNAUTHENTICATED),
        (errors.VersionError("wire", 1, 2), grpc.StatusCode.FAILED_PRECONDITION),
        (errors.PreconditionError("w"), grpc.StatusCode.FAILED_PRECONDITION),
        (errors.UnavailableError("w", 1.0), grpc.StatusCode.UNAVAILABLE),
        (errors.WorkerLostError("w"), grpc.StatusCode.UNAVAILABLE),
        (errors.ComputationError("w"), grpc.StatusCode.INTERNAL),
    ],
)
def test_what_routers_act_on(error: errors.StemcacheError, code: grpc.StatusCode) -> None:
    assert to_status(error).code is code


def test_details_say_which_field_and_when_to_come_again() -> None:
    violation = error_details_pb2.BadRequest()
    assert packed(errors.InvalidRequestError("sampling.n", "why")).Unpack(violation)
    assert violation.field_violations[0].field == "sampling.n"
    retry = error_details_pb2.RetryInfo()
    assert packed(errors.UnavailableError("why", 1.5)).Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1_500


def test_who_leaves_says_so_to_programs() -> None:
    assert len(details(errors.UnavailableError("full", 1.0))) == 1
    reason = error_details_pb2.ErrorInfo()
    assert details(errors.LeavingError("why", 1.0))[1].Unpack(reason)
    assert reason.reason == LEAVING_REASON


def test_a_limit_is_named() -> None:
    failure = error_details_pb2.QuotaFailure()
    assert packed(errors.LimitExceededError("pinned blocks", "why", 1.5)).Unpack(failure)
    assert [each.subject for each in failure.violations] == ["pinned blocks"]


def packed(error: Exception) -> Any:
    return details(error)[0]


def details(error: Exception) -> list[Any]:
    [(_, binary)] = to_status(error).trailing_metadata
    return list(status_pb2.Status.FromString(binary).details)


def test_a_fault_of_the_program_shows_nothing_of_itself() -> None:
    status = to_status(KeyError("tenant acme"))
    assert status.code is grpc.StatusCode.INTERNAL
    assert "acme" not in status.details
