from __future__ import annotations

import pytest

from cache_store.cluster_mac import sign_body
from cache_store.domain import Epoch
from cache_store.encoding import encode
from cache_store.errors import UnauthenticatedError, VersionError
from cache_store.index import Incarnation
from cache_store.request_token import _PERSON, RequestClaims, sign, verify
from tests.support.domains import make_domain

KEY = b"k" * 32
LIFE = Incarnation("0" * 32)
CLAIMS = RequestClaims(make_domain("acme", "π\x00:"), "request-1", LIFE, 100.5, (3, Epoch("e"), 4), 17)


def test_claims_come_back() -> None:
    assert verify(KEY, sign(KEY, CLAIMS), LIFE, 99.0) == CLAIMS


def test_every_changed_byte_is_refused() -> None:
    token = sign(KEY, CLAIMS)
    for position in range(len(token)):
        changed = token[:position] + bytes([token[position] ^ 1]) + token[position + 1 :]
        with pytest.raises(UnauthenticatedError):
            verify(KEY, changed, LIFE, 99.0)


@pytest.mark.parametrize("token", [b"", b"short", bytes(200)])
def test_garbage_is_refused(token: bytes) -> None:
    with pytest.raises(UnauthenticatedError):
        verify(KEY, token, LIFE, 99.0)


def test_another_key_is_refused() -> None:
    with pytest.raises(UnauthenticatedError, match="cluster key"):
        verify(b"x" * 32, sign(KEY, CLAIMS), LIFE, 99.0)


def test_expiry_ends_it() -> None:
    with pytest.raises(UnauthenticatedError, match="expired"):
        verify(KEY, sign(KEY, CLAIMS), LIFE, 100.6)


def test_it_is_for_one_incarnation() -> None:
    with pytest.raises(UnauthenticatedError, match="another incarnation"):
        verify(KEY, sign(KEY, CLAIMS), Incarnation("1" * 32), 99.0)


def test_another_version_is_refused_by_name() -> None:
    body = encode(1, "x")
    with pytest.raises(VersionError, match="request token has version 1"):
        verify(KEY, body + sign_body(KEY, body, _PERSON), LIFE, 99.0)
