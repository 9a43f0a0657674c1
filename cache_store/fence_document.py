"""Fences as bytes: all of them in the document that routers publish, and one in a notice under a MAC of its own.

A notice that is put back later is older than what a worker has by then (`Fence.order`). Knows no Redis and no gRPC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from types import MappingProxyType

from cache_store.cluster_mac import MAC_BYTES, fits, sign_body
from cache_store.domain import Epoch, ScopeKind, ScopeName, TenantId
from cache_store.encoding import decode, encode
from cache_store.errors import CorruptDataError, UnauthenticatedError, VersionError
from cache_store.fence import Fence, FenceNotice, Mark, Scope

NOTICE_VERSION = 1
_PERSON = b"sc-fence-notice"

_FENCE = struct.Struct("<IHHQH")
"""Bytes of the whole record, of the tenant's id and of the epoch, rotations, number of marks."""
_MARK = struct.Struct("<BHHQ")
"""Kind, bytes of name and value, number."""
_KINDS = (ScopeKind.PARTITION, ScopeKind.MODEL)


def write_fences(fences: Iterable[Fence]) -> bytes:
    """All of `fences`, by tenant: thousands of them are written and read in a hundredth of a second."""
    return b"".join(_write(fence) for fence in sorted(fences, key=lambda fence: fence.tenant))


class FenceReader:
    """Reads documents of which mostly little has changed: a record that stood in the one before is not read anew.

    Used by one thread at a time.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Fence] = {}

    def read(self, data: bytes) -> MappingProxyType[TenantId, Fence]:
        """Inverse of `write_fences`. Raises CorruptDataError."""
        read: dict[bytes, Fence] = {}
        position = 0
        try:
            while position < len(data):
                end = position + _FENCE.unpack_from(data, position)[0]
                record = data[position:end]
                read[record] = self._known.get(record) or _read(record)
                position = end
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise CorruptDataError(f"the fences are damaged: {error}") from error
        self._known = read
        return MappingProxyType({fence.tenant: fence for fence in read.values()})


def read_fences(data: bytes) -> MappingProxyType[TenantId, Fence]:
    """All of a document. Raises CorruptDataError."""
    return FenceReader().read(data)


def sign_notice(cluster_key: bytes, notice: FenceNotice) -> bytes:
    """The notice under the cluster's MAC."""
    fence = None if notice.fence is None else _write(notice.fence)
    body = encode(NOTICE_VERSION, notice.tenant, notice.generation, fence)
    return body + sign_body(cluster_key, body, _PERSON)


def verify_notice(cluster_key: bytes, data: bytes) -> FenceNotice:
    """Raises UnauthenticatedError for a MAC that does not fit, VersionError for another version."""
    body, mac = data[:-MAC_BYTES], data[-MAC_BYTES:]
    if not fits(cluster_key, body, mac, _PERSON):
        raise UnauthenticatedError("the MAC of the fence does not fit; do router and worker share the cluster key?")
    fields = decode(body)
    if not fields or fields[0] != NOTICE_VERSION:
        raise VersionError("the fence of a purge", fields[0] if fields else None, NOTICE_VERSION)
    match fields[1:]:
        case (str(tenant), int(generation), None):
            return FenceNotice(TenantId(tenant), None, generation)
        case (str(tenant), int(generation), bytes(raw)):
            fences = read_fences(raw)
            if fences.keys() == {tenant}:
                return FenceNotice(TenantId(tenant), fences[TenantId(tenant)], generation)
    raise CorruptDataError("the fence of a purge has other fields than this build expects")


def _write(fence: Fence) -> bytes:
    tenant, epoch = fence.tenant.encode(), fence.epoch.encode()
    marks = b"".join(_write_mark(*item) for item in sorted(fence.marks.items()))
    num_bytes = _FENCE.size + len(tenant) + len(epoch) + len(marks)
    head = _FENCE.pack(num_bytes, len(tenant), len(epoch), fence.epoch_number, len(fence.marks))
    return head + tenant + epoch + marks


def _write_mark(scope: Scope, mark: Mark) -> bytes:
    name, value = scope.name.encode(), mark.value.encode()
    return _MARK.pack(_KINDS.index(scope.kind), len(name), len(value), mark.number) + name + value


def _read(record: bytes) -> Fence:
    _, tenant_bytes, epoch_bytes, number, num_marks = _FENCE.unpack_from(record)
    at_epoch = _FENCE.size + tenant_bytes
    position = at_epoch + epoch_bytes
    tenant = TenantId(record[_FENCE.size : at_epoch].decode())
    epoch = Epoch(record[at_epoch:position].decode())
    marks: dict[Scope, Mark] = {}
    for _ in range(num_marks):
        scope, mark, position = _read_mark(record, position)
        marks[scope] = mark
    if position != len(record):
        raise CorruptDataError("a fence is longer or shorter than it says")
    return Fence(tenant, epoch, number, MappingProxyType(marks)) if marks else Fence(tenant, epoch, number)


def _read_mark(data: bytes, position: int) -> tuple[Scope, Mark, int]:
    kind, name_bytes, value_bytes, number = _MARK.unpack_from(data, position)
    at_value = position + _MARK.size + name_bytes
    end = at_value + value_bytes
    scope = Scope(_KINDS[kind], ScopeName(data[at_value - name_bytes : at_value].decode()))
    return scope, Mark(number, data[at_value:end].decode()), end
