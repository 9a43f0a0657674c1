"""Quotas, fences and adapters as routers publish them to workers: a small head that is polled, a body it vouches for.

Both carry a version; the head carries a MAC under the cluster's key and the digest of its body. Whoever cannot make the
MAC can neither change them nor make some up, and an old document that is put back is older than what a
worker has (`is_newer`). Knows no Redis.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

from cache_store.adapters import Adapter
from cache_store.cluster_mac import MAC_BYTES, fits, sign_body
from cache_store.domain import AdapterDigest, TenantId
from cache_store.encoding import Field, decode, encode
from cache_store.errors import CorruptDataError, InvalidRequestError, PreconditionError, VersionError
from cache_store.fence import FenceTable
from cache_store.fence_document import FenceReader, write_fences
from cache_store.quota import QuotaTable, TenantQuota, TierShare, check_sum
from cache_store.tier_kind import TierKind

QUOTA_VERSION = 4
_PERSON = b"sc-quotas"
_NUMBERS = struct.Struct("<dd")
_TERMS = struct.Struct("<ddd")


@dataclass(frozen=True, slots=True)
class QuotaHead:
    """Names one state of the quotas."""

    store_id: str
    """Of the control data; another one means that the store before was lost."""
    generation: int
    """Of the control data; only ever grows in one store."""
    publish_unix_s: float
    """When a router wrote it, to the millisecond."""
    body_digest: bytes

    def is_newer(self, other: QuotaHead) -> bool:
        """Whether it takes the place of `other`: a later state of the same store, or another store published later."""
        if self.store_id != other.store_id:
            return self.publish_unix_s > other.publish_unix_s
        return (self.generation, self.publish_unix_s) > (other.generation, other.publish_unix_s)


@dataclass(frozen=True, slots=True)
class Published:
    """What a document says, of one generation of the control data."""

    quotas: QuotaTable
    fences: FenceTable
    adapters: tuple[Adapter, ...] = ()
    """Of all models."""

    def __post_init__(self) -> None:
        assert self.quotas.generation == self.fences.generation


@dataclass(frozen=True, slots=True)
class QuotaDocument:
    """Head and body as they stand in the store."""

    head: bytes
    body: bytes


def write_published(cluster_key: bytes, store_id: str, published: Published, publish_unix_s: float) -> QuotaDocument:
    """The document of `published`."""
    quotas = published.quotas
    entries = (_write_entry(tenant, quota) for tenant, quota in sorted(quotas.quotas.items()))
    adapters = (encode(each.name, each.base, each.folder, bytes(each.digest)) for each in published.adapters)
    fences = write_fences(published.fences.fences.values())
    revoked = encode(*(field for entry in sorted(published.fences.revoked_keys.items()) for field in entry))
    body = encode(QUOTA_VERSION, encode(*entries), fences, encode(*adapters), revoked)
    fields = encode(QUOTA_VERSION, store_id, quotas.generation, round(publish_unix_s * 1000), digest_of(body))
    return QuotaDocument(fields + sign_body(cluster_key, fields, _PERSON), body)


def read_head(cluster_key: bytes, data: bytes) -> QuotaHead:
    """Raises CorruptDataError for a MAC that does not fit, VersionError for another version."""
    fields, mac = data[:-MAC_BYTES], data[-MAC_BYTES:]
    if not fits(cluster_key, fields, mac, _PERSON):
        raise CorruptDataError("the MAC of the quotas does not fit; do router and worker share the cluster key?")
    match _versioned(fields):
        case (str(store_id), int(generation), int(publish_ms), bytes(body_digest)):
            return QuotaHead(store_id, generation, publish_ms / 1000, body_digest)
    raise CorruptDataError("the head of the quotas has other fields than this build expects")


def read_published(head: QuotaHead, body: bytes, fences: FenceReader) -> Published:
    """What `head` vouches for; `fences` has read the document before, or none.

    Raises CorruptDataError where `body` is another one or its guarantees exceed a tier, VersionError.
    """
    if not hmac.compare_digest(digest_of(body), head.body_digest):
        raise CorruptDataError("the body of the quotas is not the one that their head names")
    match _versioned(body):
        case (bytes(entries), bytes(records), bytes(adapters), bytes(revoked)):
            quotas = QuotaTable(head.generation, MappingProxyType(_read_quotas(entries)))
            table = FenceTable(head.generation, fences.read(records), MappingProxyType(_read_revoked(revoked)))
            return Published(quotas, table, tuple(_read_adapter(each) for each in decode(adapters)))
    raise CorruptDataError("the body of the quotas has other fields than this build expects")


def _read_quotas(entries: bytes) -> dict[TenantId, TenantQuota]:
    try:
        quotas = dict(_read_entry(entry) for entry in decode(entries))
        check_sum(quotas.values())
    except (InvalidRequestError, PreconditionError) as error:
        raise CorruptDataError(f"the quotas cannot be in force: {error}") from error
    return quotas


def _read_revoked(data: bytes) -> dict[TenantId, int]:
    fields = decode(data)
    if len(fields) % 2:
        raise CorruptDataError("the numbers of revoked keys have other fields than this build expects")
    counts: dict[TenantId, int] = {}
    for pair in zip(fields[::2], fields[1::2], strict=True):
        match pair:
            case (str(tenant), int(count)):
                counts[TenantId(tenant)] = count
            case _:
                raise CorruptDataError("the numbers of revoked keys have other fields than this build expects")
    return counts


def _read_adapter(entry: Field) -> Adapter:
    match decode(entry) if isinstance(entry, bytes) else ():
        case (str(name), str(base), str(folder), bytes(digest)):
            return Adapter(name, base, folder, AdapterDigest(digest))
    raise CorruptDataError("an adapter has other fields than this build expects")


def _write_entry(tenant: TenantId, quota: TenantQuota) -> bytes:
    shares = [
        field
        for tier, share in sorted(quota.shares.items())
        for field in (tier.value, _NUMBERS.pack(share.minimum, share.maximum))
    ]
    return encode(tenant, _TERMS.pack(quota.weight, quota.max_pinned, quota.audit_share), *shares)


def _read_entry(entry: Field) -> tuple[TenantId, TenantQuota]:
    match decode(entry) if isinstance(entry, bytes) else ():
        case (str(tenant), bytes(terms), *shares) if len(shares) % 2 == 0:
            pairs = zip(shares[::2], shares[1::2], strict=True)
            own = MappingProxyType(dict(map(_read_share, pairs)))
            return TenantId(tenant), TenantQuota(own, *_numbers(_TERMS, terms))
    raise CorruptDataError("a quota has other fields than this build expects")


def _read_share(pair: tuple[Field, Field]) -> tuple[TierKind, TierShare]:
    match pair:
        case (str(tier), bytes(numbers)) if tier in set(TierKind):
            return TierKind(tier), TierShare(*_numbers(_NUMBERS, numbers))
    raise CorruptDataError("a quota names a tier that this build does not know")


def _numbers(form: struct.Struct, data: bytes) -> Iterator[float]:
    if len(data) != form.size:
        raise CorruptDataError("a quota has numbers of another length")
    return map(float, form.unpack(data))


def _versioned(data: bytes) -> tuple[Field, ...]:
    fields = decode(data)
    if not fields or fields[0] != QUOTA_VERSION:
        raise VersionError("the quotas in Redis", fields[0] if fields else None, QUOTA_VERSION)
    return fields[1:]


def digest_of(body: bytes) -> bytes:
    """What a head says of its body."""
    return hashlib.blake2b(body, digest_size=32, person=b"sc-quota-body").digest()
