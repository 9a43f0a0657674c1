"""`up.json`: where a running system listens, for the commands that talk to it. Holds no secret."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from cache_store.errors import PreconditionError
from services.cluster.data_folder import DataFolder, write_private

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class UpState:
    """A running system."""

    version: int
    pid: int
    address: str
    """host:port of the tenants' API."""
    admin_address: str
    model: str
    started_unix_s: float
    metrics_address: str = ""
    """host:port of the router's metrics, and of the list of all others' (`/targets`); empty: none are shown."""
    up_metrics_address: str = ""
    """Of the metrics of `stemcache up` itself."""


def write_state(folder: DataFolder, state: UpState) -> None:
    """Tells other commands about the running system."""
    write_private(folder.state, json.dumps(asdict(state), indent=2) + "\n")


def remove_state(folder: DataFolder) -> None:
    """Forgets it. Idempotent."""
    folder.state.unlink(missing_ok=True)


def read_state(folder: DataFolder) -> UpState:
    """The system that runs on `folder` now. Raises PreconditionError where none does."""
    if not folder.is_locked():
        raise PreconditionError(f"no stemcache runs on {folder.path}; start one with: stemcache up")
    try:
        document = json.loads(folder.state.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PreconditionError(
            f"the stemcache on {folder.path} is starting or stopping; try again in a moment"
        ) from None
    except (OSError, ValueError) as error:
        raise PreconditionError(f"{folder.state} cannot be read: {error}; restart stemcache up") from error
    if not isinstance(document, dict) or document.get("version") != STATE_VERSION:
        raise PreconditionError(f"{folder.state} was written by another version of stemcache; restart stemcache up")
    try:
        return UpState(**{field.name: document[field.name] for field in fields(UpState)})
    except KeyError as error:
        raise PreconditionError(f"{folder.state} lacks {error}; restart stemcache up") from error
