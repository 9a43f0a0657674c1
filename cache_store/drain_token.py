"""An order to a worker to leave: under the cluster's key, for one incarnation and for seconds."""

from __future__ import annotations

from cache_store.cluster_mac import MAC_BYTES, fits, sign_body
from cache_store.encoding import decode, encode
from cache_store.errors import CorruptDataError, UnauthenticatedError, VersionError
from cache_store.index import Incarnation

DRAIN_TOKEN_VERSION = 1
_PERSON = b"sc-drain-token"


def sign_drain(cluster_key: bytes, incarnation: Incarnation, expires_unix_s: float) -> bytes:
    """The order to leave for one life of a worker."""
    body = encode(DRAIN_TOKEN_VERSION, incarnation, round(expires_unix_s * 1000))
    return body + sign_body(cluster_key, body, _PERSON)


def verify_drain(cluster_key: bytes, token: bytes, incarnation: Incarnation, now_unix_s: float) -> None:
    """Raises UnauthenticatedError where it is not an order to this incarnation, now; VersionError."""
    body, mac = token[:-MAC_BYTES], token[-MAC_BYTES:]
    if not fits(cluster_key, body, mac, _PERSON):
        raise UnauthenticatedError("the drain token's MAC does not fit; do router and worker share the cluster key?")
    try:
        fields = decode(body)
    except CorruptDataError as error:
        raise UnauthenticatedError("the drain token is malformed") from error
    match fields:
        case (int(version), *_) if version != DRAIN_TOKEN_VERSION:
            raise VersionError("drain token", version, DRAIN_TOKEN_VERSION)
        case (int(), str(named), int(expires_ms)) if named == incarnation and expires_ms >= now_unix_s * 1000:
            return
    raise UnauthenticatedError("the drain token is for another incarnation of this worker, or has expired")
