"""MACs under the cluster's key, which routers and workers share. While that is exchanged, two are in use.

A cluster key is KEY_BYTES long, or is several of these behind each other: the first one signs, each is believed. Knows
nothing of what is signed, nor where keys come from.
"""

from __future__ import annotations

import hashlib
import hmac

KEY_BYTES = 32
MAC_BYTES = 32


def sign_body(cluster_key: bytes, body: bytes, person: bytes) -> bytes:
    """The MAC over `body`. `person` tells apart what is signed, in 16 bytes at most."""
    return _mac(cluster_key[:KEY_BYTES], body, person)


def fits(cluster_key: bytes, body: bytes, mac: bytes, person: bytes) -> bool:
    """Whether somebody signed that who has one of the keys."""
    keys = (cluster_key[at : at + KEY_BYTES] for at in range(0, len(cluster_key), KEY_BYTES))
    return any(hmac.compare_digest(mac, _mac(key, body, person)) for key in keys)


def _mac(key: bytes, body: bytes, person: bytes) -> bytes:
    return hashlib.blake2b(body, key=key, digest_size=MAC_BYTES, person=person).digest()
