"""MACs under the cluster's key, which routers and workers share. While that is exchanged, two are in use.

A cluster key is KEY_BYTES long, or is several of these behind each other: the first one signs, each is believed. Knows
nothing of what is signed, nor where keys come from.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator

KEY_BYTES = 32
MAC_BYTES = 32


def used_key(cluster_key: bytes) -> bytes:
    """The one key that signs and seals."""
    return cluster_key[:KEY_BYTES]


def believed_keys(cluster_key: bytes) -> Iterator[bytes]:
    """Each of the keys, the one that is used first."""
    return (cluster_key[at : at + KEY_BYTES] for at in range(0, len(cluster_key), KEY_BYTES))


def sign_body(cluster_key: bytes, body: bytes, person: bytes) -> bytes:
    """The MAC over `body`. `person` tells apart what is signed, in 16 bytes at most."""
    return _mac(used_key(cluster_key), body, person)


def fits(cluster_key: bytes, body: bytes, mac: bytes, person: bytes) -> bool:
    """Whether somebody signed that who has one of the keys."""
    return signing_key(cluster_key, body, mac, person) is not None


def signing_key(cluster_key: bytes, body: bytes, mac: bytes, person: bytes) -> bytes | None:
    """Which of the keys that was signed with; None: with none of them."""
    return next(
        (each for each in believed_keys(cluster_key) if hmac.compare_digest(mac, _mac(each, body, person))), None
    )


def _mac(key: bytes, body: bytes, person: bytes) -> bytes:
    return hashlib.blake2b(body, key=key, digest_size=MAC_BYTES, person=person).digest()
