"""The one exception tree.

    StemcacheError
    ├── InvalidRequestError      the caller's input; says which field, why, and what would work
    ├── UnauthenticatedError     no or bad credential
    ├── NotFoundError            absent, or another tenant's: the two are told apart by nobody
    ├── AlreadyExistsError       a name that is taken
    ├── PreconditionError        the state does not allow it; says what to do first
    ├── LimitExceededError       a limit of the caller's tenant; says when to retry
    ├── UnavailableError         the cluster cannot serve now; says when to retry
    │   └── LeavingError         this worker takes nothing new any more; another one is to be asked
    ├── DeadlineError            the deadline passed or cannot be met
    ├── ComputationError         the model gave no token for a request
    ├── WorkerLostError          the worker went away in the middle of a request
    ├── CancelledRequestError    the request was cancelled
    ├── VersionError             a wire or stored format of another version; names both
    ├── CorruptDataError         a MAC or checksum does not fit
    └── StorageError             a tier cannot keep a block; says why
        └── NotStoredError       a tier does not have a block

Statuses of gRPC are assigned to them in `services/router/statuses.py` and `worker/statuses.py`, nowhere else.
"""

from __future__ import annotations


class StemcacheError(Exception):
    """Base of all errors that carry a sentence for their reader."""


class InvalidRequestError(StemcacheError):
    """Bad input. `field` is the path of the field in the request, the message says what would work."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class UnauthenticatedError(StemcacheError):
    """No credential, or one that opens nothing."""


class NotFoundError(StemcacheError):
    """Absent for this caller."""


class AlreadyExistsError(StemcacheError):
    """The name or id is taken."""


class PreconditionError(StemcacheError):
    """The state does not allow it."""


class LimitExceededError(StemcacheError):
    """A limit of the caller's tenant. `subject` names the limit, `retry_after_s` says when to come again."""

    def __init__(self, subject: str, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.subject = subject
        self.retry_after_s = retry_after_s


class UnavailableError(StemcacheError):
    """The cluster cannot serve now."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class LeavingError(UnavailableError):
    """A worker leaves: it takes nothing new for the rest of its life."""


class DeadlineError(StemcacheError):
    """The deadline passed, or cannot be met."""


class ComputationError(StemcacheError):
    """The model gave no token for a request."""


class WorkerLostError(StemcacheError):
    """The worker went away in the middle of a request."""


class CancelledRequestError(StemcacheError):
    """The request was cancelled."""


class VersionError(StemcacheError):
    """A wire or stored format of another version."""

    def __init__(self, what: str, found: object, expected: object) -> None:
        super().__init__(f"{what} has version {found}, this build speaks version {expected}")
        self.what = what
        self.found = found
        self.expected = expected


class CorruptDataError(StemcacheError):
    """A MAC or checksum does not fit."""


class StorageError(StemcacheError):
    """A tier cannot keep a block. Costs a miss later on, never a request."""


class NotStoredError(StorageError):
    """A tier does not have a block."""
