"""Finds the caller's API key in the metadata of a call. Knows no tenants; holds no state."""

from __future__ import annotations

from collections.abc import Iterable

from cache_store.errors import UnauthenticatedError

_SCHEME = "bearer "


def api_key_of(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The key of `authorization: Bearer sc-...` or `x-api-key: sc-...`.

    Raises UnauthenticatedError where there is none, and where there are several: a caller has one tenant.
    """
    keys = set()
    for name, value in metadata:
        if not isinstance(value, str):
            continue
        if name == "x-api-key":
            keys.add(value.strip())
        elif name == "authorization":
            if value[: len(_SCHEME)].lower() != _SCHEME:
                raise UnauthenticatedError("the authorization header has another scheme; send `Bearer sc-...`")
            keys.add(value[len(_SCHEME) :].strip())
    if not keys:
        raise UnauthenticatedError("there is no API key; send `authorization: Bearer sc-...`")
    if len(keys) > 1:
        raise UnauthenticatedError("there are several API keys; send one")
    return keys.pop()
