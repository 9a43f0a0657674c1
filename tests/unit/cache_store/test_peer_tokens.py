"""By which right workers ask each other for blocks, and leave: one incarnation, one domain, for seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cache_store.domain import Epoch
from cache_store.drain_token import sign_drain, verify_drain
from cache_store.encoding import encode
from cache_store.errors import UnauthenticatedError, VersionError
from cache_store.index import Incarnation
from cache_store.peer_seal import Exchange
from cache_store.peer_token import PEER_TOKEN_LIFETIME_S, PeerClaims, sign_peer, verify_peer
from cache_store.request_token import RequestClaims, sign, verify
from tests.support.domains import make_domain

KEY, NOW_S = b"k" * 32, 1_000.0
HOLDER, ASKER = Incarnation("h" * 32), Incarnation("a" * 32)
ACME = make_domain("acme")
CLAIMS = PeerClaims(
    Exchange(HOLDER, ASKER, b"n" * 32, KEY), ACME.tenant, ACME.tag, NOW_S + PEER_TOKEN_LIFETIME_S, (3, Epoch("e"), 2), 7
)


def test_claims_come_back() -> None:
    assert verify_peer(KEY, sign_peer(KEY, CLAIMS), HOLDER, NOW_S) == CLAIMS


def test_of_two_keys_they_name_the_one_that_signed() -> None:
    """While the cluster's key is exchanged: questions and answers are sealed with that one."""
    other = b"o" * 32
    for keys in (KEY, KEY + other):
        for believed in (KEY, KEY + other, other + KEY):
            signed = replace(CLAIMS, exchange=replace(CLAIMS.exchange, cluster_key=keys))
            assert verify_peer(believed, sign_peer(keys, signed), HOLDER, NOW_S) == CLAIMS


def test_the_domains_root_is_not_in_it() -> None:
    assert ACME.root not in sign_peer(KEY, CLAIMS)


def test_every_byte_counts() -> None:
    token = sign_peer(KEY, CLAIMS)
    for at in range(len(token)):
        changed = token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :]
        with pytest.raises(UnauthenticatedError):
            verify_peer(KEY, changed, HOLDER, NOW_S)
    for end in (0, 10, len(token) - 1):
        with pytest.raises(UnauthenticatedError):
            verify_peer(KEY, token[:end], HOLDER, NOW_S)


def test_it_is_for_one_holder_and_for_seconds() -> None:
    token = sign_peer(KEY, CLAIMS)
    with pytest.raises(UnauthenticatedError, match="another incarnation"):
        verify_peer(KEY, token, ASKER, NOW_S)
    with pytest.raises(UnauthenticatedError, match="expired"):
        verify_peer(KEY, token, HOLDER, NOW_S + PEER_TOKEN_LIFETIME_S + 0.01)
    with pytest.raises(UnauthenticatedError, match="too long"):
        verify_peer(KEY, sign_peer(KEY, replace(CLAIMS, expires_unix_s=NOW_S + 3_600)), HOLDER, NOW_S)
    with pytest.raises(UnauthenticatedError):
        verify_peer(b"x" * 32, token, HOLDER, NOW_S)


def test_kinds_of_tokens_do_not_pass_for_each_other() -> None:
    request = RequestClaims(ACME, "r", HOLDER, NOW_S + 10, (3, Epoch("e"), 2), 7)
    drain = sign_drain(KEY, HOLDER, NOW_S + 10)
    for foreign in (sign(KEY, request), drain):
        with pytest.raises(UnauthenticatedError, match="MAC"):
            verify_peer(KEY, foreign, HOLDER, NOW_S)
    for foreign in (sign_peer(KEY, CLAIMS), drain):
        with pytest.raises(UnauthenticatedError, match="MAC"):
            verify(KEY, foreign, HOLDER, NOW_S)
    for foreign in (sign_peer(KEY, CLAIMS), sign(KEY, request)):
        with pytest.raises(UnauthenticatedError, match="MAC"):
            verify_drain(KEY, foreign, HOLDER, NOW_S)


def test_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache_store.peer_token.PEER_TOKEN_VERSION", 9)
    token = sign_peer(KEY, CLAIMS)
    monkeypatch.undo()
    with pytest.raises(VersionError, match="peer token"):
        verify_peer(KEY, token, HOLDER, NOW_S)


def test_a_nonce_has_its_length() -> None:
    short = replace(CLAIMS, exchange=Exchange(HOLDER, ASKER, b"n", KEY))
    with pytest.raises(UnauthenticatedError, match="fields"):
        verify_peer(KEY, sign_peer(KEY, short), HOLDER, NOW_S)


def test_an_order_to_leave_is_for_one_life_and_for_seconds() -> None:
    token = sign_drain(KEY, HOLDER, NOW_S + 10)
    verify_drain(KEY, token, HOLDER, NOW_S)
    for key, incarnation, now_s in ((b"x" * 32, HOLDER, NOW_S), (KEY, ASKER, NOW_S), (KEY, HOLDER, NOW_S + 11)):
        with pytest.raises(UnauthenticatedError):
            verify_drain(key, token, incarnation, now_s)
    for at in range(len(token)):
        changed = token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :]
        with pytest.raises(UnauthenticatedError):
            verify_drain(KEY, changed, HOLDER, NOW_S)


def test_encodings_of_claims_are_no_tokens() -> None:
    with pytest.raises(UnauthenticatedError):
        verify_peer(KEY, encode(1, HOLDER), HOLDER, NOW_S)
