"""Adapters as routers publish them to workers, and as workers report them. Plain values."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cache_store.domain import AdapterDigest, FormatDigest
from cache_store.errors import InvalidRequestError

MAX_ADAPTERS = 64
"""Of one cluster: each worker has all of its model's in memory and tells of each with every renewal."""

MAX_NAME_CHARS = 64
MAX_FOLDER_CHARS = 1_024
MAX_ERROR_CHARS = 400

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Adapter:
    """What a worker of the model `base` is to load."""

    name: str
    """That clients call it by, like a model."""
    base: str
    folder: str
    digest: AdapterDigest
    """Of its content: what else the folder holds by now is not loaded."""


@dataclass(frozen=True, slots=True)
class AdapterReport:
    """What became of an adapter on a worker."""

    name: str
    digest: AdapterDigest
    """Of the content that is served, or was to be."""
    kv_format: FormatDigest
    error: str
    """Why it is not served; empty where it is."""


def checked_name(name: str) -> str:
    """`name`, where it can name an adapter; else InvalidRequestError."""
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            "name",
            f"{name[:MAX_NAME_CHARS]!r} cannot name an adapter: use 1 to {MAX_NAME_CHARS} letters, digits, dots, "
            "dashes and underscores, with a letter or digit at either end, like 'support-v2'",
        )
    return name
