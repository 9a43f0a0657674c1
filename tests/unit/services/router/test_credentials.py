"""One key per call, from either header; anything else is nobody."""

from __future__ import annotations

import pytest

from cache_store.errors import UnauthenticatedError
from services.router.credentials import api_key_of

Metadata = tuple[tuple[str, str | bytes], ...]


@pytest.mark.parametrize(
    "metadata",
    [
        (("authorization", "Bearer sc-a-b"),),
        (("authorization", "bearer  sc-a-b "),),
        (("x-api-key", "sc-a-b"),),
        (("x-api-key", "sc-a-b"), ("authorization", "Bearer sc-a-b"), ("user-agent", "x")),
    ],
)
def test_finds_the_key(metadata: Metadata) -> None:
    assert api_key_of(metadata) == "sc-a-b"


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("user-agent", "sc-a-b"),),
        (("authorization", "sc-a-b"),),
        (("authorization", "Basic sc-a-b"),),
        (("authorization", b"Bearer sc-a-b"),),
        (("x-api-key", "sc-a-b"), ("x-api-key", "sc-c-d")),
        (("authorization", "Bearer sc-a-b"), ("x-api-key", "sc-c-d")),
    ],
)
def test_anything_else_is_nobody(metadata: Metadata) -> None:
    with pytest.raises(UnauthenticatedError):
        api_key_of(metadata)
