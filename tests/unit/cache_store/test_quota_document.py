"""Published quotas: what comes back, what is refused, which of two is the newer."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.adapters import Adapter
from cache_store.domain import TenantId
from cache_store.encoding import encode
from cache_store.errors import CorruptDataError, VersionError
from cache_store.fence import FenceTable
from cache_store.fence_document import FenceReader
from cache_store.quota import QuotaTable, TenantQuota, TierShare
from cache_store.quota_document import (
    QUOTA_VERSION,
    Published,
    QuotaHead,
    digest_of,
    read_head,
    read_published,
    write_published,
)
from cache_store.tier_kind import TierKind
from tests.support.quotas import quota_document

KEY = b"k" * 32
SOME = QuotaTable(
    7,
    MappingProxyType(
        {
            TenantId("a"): TenantQuota(MappingProxyType({TierKind.DEVICE: TierShare(0.25, 0.5)}), 2.0, 0.0),
            TenantId("b"): TenantQuota(),
        }
    ),
)
OTHER = QuotaTable(8, MappingProxyType({TenantId("a"): TenantQuota()}))

quotas = st.builds(
    lambda low, high, weight, pinned, audits: TenantQuota(
        MappingProxyType({TierKind.DEVICE: TierShare(low, max(low, high))}), weight, pinned, audits
    ),
    st.floats(0, 0.25),
    st.floats(0.001, 1),
    st.floats(0.001, 1000),
    st.floats(0, 1),
    st.floats(0, 1),
)


@given(st.dictionaries(st.text(st.characters()), quotas, max_size=4), st.integers(0, 1 << 60), st.text(max_size=8))
def test_what_is_written_is_read_back_equal(table: dict[TenantId, TenantQuota], generation: int, store_id: str) -> None:
    document = quota_document(KEY, store_id, QuotaTable(generation, table), 12.25)
    head = read_head(KEY, document.head)
    assert (head.store_id, head.generation, head.publish_unix_s) == (store_id, generation, 12.25)
    assert read_published(head, document.body, FenceReader()).quotas == QuotaTable(generation, table)


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_changed_head_is_refused(at: int) -> None:
    data = bytearray(quota_document(KEY, "s", SOME, 1.0).head)
    data[at] ^= 1
    with pytest.raises(CorruptDataError, match="MAC of the quotas does not fit"):
        read_head(KEY, bytes(data))


@pytest.mark.parametrize("data", [b"", b"x", bytes(64), quota_document(b"o" * 32, "s", SOME, 1.0).head])
def test_what_was_not_written_under_the_clusters_key_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="MAC"):
        read_head(KEY, data)


def test_a_body_is_that_of_its_head() -> None:
    head = read_head(KEY, quota_document(KEY, "s", SOME, 1.0).head)
    with pytest.raises(CorruptDataError, match="not the one"):
        read_published(head, quota_document(KEY, "s", OTHER, 1.0).body, FenceReader())


def head_of(body: bytes) -> QuotaHead:
    """A head that vouches for `body`, as one of a router gone wrong would."""
    return QuotaHead("s", 1, 1.0, digest_of(body))


def entry(*fields: bytes | str) -> bytes:
    return encode(of("a", *fields))


def of(tenant: str, *fields: bytes | str) -> bytes:
    return encode(tenant, *fields)


ONE = bytes(6) + b"\xf0\x3f"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (encode(4, 4), "other fields"),
        (encode(4, encode(3), b"", b"", b""), "other fields"),
        (encode(4, b"\xff", b"", b"", b""), "header"),
        (encode(4, b"", b"\xff", b"", b""), "fences are damaged"),
        (encode(4, entry(b"x"), b"", b"", b""), "another length"),
        (encode(4, entry(ONE * 3, "moon", ONE + ONE), b"", b"", b""), "tier"),
        (encode(4, entry(ONE * 3, "device", b""), b"", b"", b""), "another length"),
        (encode(4, entry(bytes(24)), b"", b"", b""), "cannot be in force: weight"),
        (encode(4, entry(ONE * 3, "device"), b"", b"", b""), "other fields"),
        (
            encode(
                4, encode(of("a", ONE * 3, "device", ONE + ONE), of("b", ONE * 3, "device", ONE + ONE)), b"", b"", b""
            ),
            "add up to 200 %",
        ),
    ],
)
def test_a_damaged_body_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(CorruptDataError, match=says):
        read_published(head_of(body), body, FenceReader())


def test_another_version_is_refused_by_name() -> None:
    body = encode(1)
    with pytest.raises(VersionError, match="has version 1, this build speaks version 4"):
        read_published(head_of(body), body, FenceReader())


@pytest.mark.parametrize(
    ("new", "held", "is_newer"),
    [
        (("s", 2, 1.0), ("s", 1, 9.0), True),
        (("s", 1, 9.0), ("s", 2, 1.0), False),
        (("s", 1, 2.0), ("s", 1, 1.0), True),
        (("s", 1, 1.0), ("s", 1, 1.0), False),
        (("other", 1, 2.0), ("s", 9, 1.0), True),
        (("other", 99, 1.0), ("s", 1, 2.0), False),
        (("other", 99, 1.0), ("s", 1, 1.0), False),
    ],
)
def test_which_is_newer(new: tuple[str, int, float], held: tuple[str, int, float], is_newer: bool) -> None:
    assert QuotaHead(*new, b"").is_newer(QuotaHead(*held, b"")) is is_newer


names = st.text(st.characters(), max_size=8)


@given(st.lists(st.builds(Adapter, names, names, names, st.binary(max_size=40)), max_size=4))
def test_adapters_are_read_back_equal(adapters: list[Adapter]) -> None:
    published = Published(SOME, FenceTable(SOME.generation), tuple(adapters))
    document = write_published(KEY, "s", published, 1.0)
    read = read_published(read_head(KEY, document.head), document.body, FenceReader())
    assert read.adapters == tuple(adapters)
    assert read.quotas == SOME


def test_an_adapter_with_other_fields_is_refused() -> None:
    document = quota_document(KEY, "s", SOME, 1.0)
    body = encode(QUOTA_VERSION, encode(), encode(), encode(encode("a", "b", "c")), encode())
    head = QuotaHead("s", 7, 1.0, digest_of(body))
    assert document.body != body
    with pytest.raises(CorruptDataError, match="an adapter has other fields"):
        read_published(head, body, FenceReader())


@given(st.dictionaries(names.map(TenantId), st.integers(1, 1 << 40), max_size=4))
def test_numbers_of_revoked_keys_are_read_back_equal(counts: dict[TenantId, int]) -> None:
    table = FenceTable(SOME.generation, revoked_keys=MappingProxyType(counts))
    document = write_published(KEY, "s", Published(SOME, table), 1.0)
    read = read_published(read_head(KEY, document.head), document.body, FenceReader())
    assert read.fences.revoked_keys == counts


@pytest.mark.parametrize("revoked", [("acme",), ("acme", "1"), (1, 1)])
def test_numbers_of_revoked_keys_with_other_fields_are_refused(revoked: tuple[str | int, ...]) -> None:
    body = encode(QUOTA_VERSION, encode(), encode(), encode(), encode(*revoked))
    with pytest.raises(CorruptDataError, match="revoked keys have other fields"):
        read_published(QuotaHead("s", 7, 1.0, digest_of(body)), body, FenceReader())
