"""By which right a worker asks another one for blocks: claims under the cluster's key, for seconds and one incarnation.

They name the domain by its tag: its root, from which keys come, is in clear in no message between workers.
The bytes are `encode(version, *claims)` followed by a 32-byte keyed BLAKE2b, as of request tokens, under another name.
"""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.cluster_mac import MAC_BYTES, sign_body, signing_key
from cache_store.domain import DomainTag, Epoch, TenantId
from cache_store.encoding import decode, encode
from cache_store.errors import CorruptDataError, UnauthenticatedError, VersionError
from cache_store.fence import FenceOrder
from cache_store.index import Incarnation
from cache_store.peer_seal import RANDOM_BYTES, Exchange

PEER_TOKEN_VERSION = 1
PEER_TOKEN_LIFETIME_S = 15.0
_PERSON = b"sc-peer-token"
_NUM_FIELDS = 11


@dataclass(frozen=True, slots=True)
class PeerClaims:
    """Who asks whom, for which domain, until when."""

    exchange: Exchange
    tenant: TenantId
    domain_tag: DomainTag
    expires_unix_s: float
    fence_order: FenceOrder
    """Of the tenant's fence by which the domain was derived."""
    control_generation: int
    """Of the control data in which it stood."""


def sign_peer(cluster_key: bytes, claims: PeerClaims) -> bytes:
    """Token of `claims`."""
    body = encode(
        PEER_TOKEN_VERSION,
        claims.exchange.holder,
        claims.exchange.asker,
        claims.exchange.nonce,
        claims.tenant,
        bytes(claims.domain_tag),
        round(claims.expires_unix_s * 1000),
        *claims.fence_order,
        claims.control_generation,
    )
    return body + sign_body(cluster_key, body, _PERSON)


def verify_peer(cluster_key: bytes, token: bytes, holder: Incarnation, now_unix_s: float) -> PeerClaims:
    """Claims of `token`; the exchange has the key that it was signed with.

    Raises UnauthenticatedError for a wrong MAC, another holder or an expired token, VersionError for another version.
    """
    body, mac = token[:-MAC_BYTES], token[-MAC_BYTES:]
    key = signing_key(cluster_key, body, mac, _PERSON)
    if key is None:
        raise UnauthenticatedError("the peer token's MAC does not fit; do the workers share the cluster key?")
    try:
        fields = decode(body)
    except CorruptDataError as error:
        raise UnauthenticatedError("the peer token is malformed") from error
    if not fields or fields[0] != PEER_TOKEN_VERSION:
        raise VersionError("peer token", fields[0] if fields else None, PEER_TOKEN_VERSION)
    claims = _claims(fields, key)
    if claims.exchange.holder != holder:
        raise UnauthenticatedError("the peer token is for another incarnation of this worker")
    if not now_unix_s <= claims.expires_unix_s <= now_unix_s + 2 * PEER_TOKEN_LIFETIME_S:
        raise UnauthenticatedError("the peer token has expired, or lasts too long; are the workers' clocks apart?")
    return claims


def _claims(fields: tuple[object, ...], cluster_key: bytes) -> PeerClaims:
    match fields:
        case (
            int(),
            str(holder),
            str(asker),
            bytes(nonce),
            str(tenant),
            bytes(tag),
            int(expires_ms),
            int(rotations),
            str(order_epoch),
            int(purges),
            int(generation),
        ) if len(fields) == _NUM_FIELDS and len(nonce) == RANDOM_BYTES:
            exchange = Exchange(Incarnation(holder), Incarnation(asker), nonce, cluster_key)
            order = (rotations, Epoch(order_epoch), purges)
            return PeerClaims(exchange, TenantId(tenant), DomainTag(tag), expires_ms / 1000, order, generation)
    raise UnauthenticatedError("the peer token has other fields than this build expects")
