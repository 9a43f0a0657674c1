"""What a worker believes about a request: MAC'd claims, made by a router, valid for seconds and for one incarnation.

A worker takes the domain from these claims only. The MAC key is the cluster's, derived from the master key; tenants
never see a token. The bytes are `encode(version, *claims)` followed by a 32-byte keyed BLAKE2b.
"""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.cluster_mac import MAC_BYTES, fits, sign_body
from cache_store.domain import Domain, Epoch, FormatDigest, ScopeName, TenantId
from cache_store.encoding import decode, encode
from cache_store.errors import CorruptDataError, UnauthenticatedError, VersionError
from cache_store.fence import FenceOrder
from cache_store.index import Incarnation

TOKEN_VERSION = 3
TOKEN_LIFETIME_S = 15.0
_PERSON = b"sc-req-token"
_NUM_FIELDS = 16


@dataclass(frozen=True, slots=True)
class RequestClaims:
    """Who asks, for what, until when."""

    domain: Domain
    request_id: str
    incarnation: Incarnation
    expires_unix_s: float
    fence_order: FenceOrder
    """Of the tenant's fence by which the domain was derived."""
    control_generation: int
    """Of the control data in which it stood: a tenant that a worker knows nothing of may have been made since, or be
    deleted."""
    num_revoked_keys: int = 0
    """Of the tenant, as far as its router knew."""


def sign(cluster_key: bytes, claims: RequestClaims) -> bytes:
    """Token of `claims`."""
    domain = claims.domain
    body = encode(
        TOKEN_VERSION,
        domain.tenant,
        domain.epoch,
        domain.partition,
        bytes(domain.kv_format),
        domain.root,
        domain.model,
        domain.tenant_epoch,
        claims.request_id,
        claims.incarnation,
        round(claims.expires_unix_s * 1000),
        *claims.fence_order,
        claims.control_generation,
        claims.num_revoked_keys,
    )
    return body + sign_body(cluster_key, body, _PERSON)


def verify(cluster_key: bytes, token: bytes, incarnation: Incarnation, now_unix_s: float) -> RequestClaims:
    """Claims of `token`.

    Raises UnauthenticatedError for a wrong MAC, another incarnation or an expired token, VersionError for another
    version.
    """
    body, mac = token[:-MAC_BYTES], token[-MAC_BYTES:]
    if not fits(cluster_key, body, mac, _PERSON):
        raise UnauthenticatedError("the request token's MAC does not fit; do router and worker share the cluster key?")
    try:
        fields = decode(body)
    except CorruptDataError as error:
        raise UnauthenticatedError("the request token is malformed") from error
    if not fields or fields[0] != TOKEN_VERSION:
        raise VersionError("request token", fields[0] if fields else None, TOKEN_VERSION)
    claims = _claims(fields)
    if claims.incarnation != incarnation:
        raise UnauthenticatedError("the request token is for another incarnation of this worker")
    if claims.expires_unix_s < now_unix_s:
        raise UnauthenticatedError("the request token has expired; are the clocks of router and worker apart?")
    return claims


def _claims(fields: tuple[object, ...]) -> RequestClaims:
    match fields:
        case (
            int(),
            str(tenant),
            str(epoch),
            str(partition),
            bytes(kv_format),
            bytes(root),
            str(model),
            str(tenant_epoch),
            str(request_id),
            str(incarnation),
            int(expires_ms),
            int(rotations),
            str(order_epoch),
            int(purges),
            int(generation),
            int(num_revoked),
        ) if len(fields) == _NUM_FIELDS:
            domain = Domain(
                tenant=TenantId(tenant),
                epoch=Epoch(epoch),
                partition=ScopeName(partition),
                kv_format=FormatDigest(kv_format),
                root=root,
                model=ScopeName(model),
                tenant_epoch=Epoch(tenant_epoch),
            )
            order = (rotations, Epoch(order_epoch), purges)
            life, expires_s = Incarnation(incarnation), expires_ms / 1000
            return RequestClaims(domain, request_id, life, expires_s, order, generation, num_revoked)
    raise UnauthenticatedError("the request token has other fields than this build expects")
