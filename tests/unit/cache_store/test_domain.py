from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.domain import Epoch, FormatDigest, KvFormat, TenantId, derive_domain
from tests.support.domains import make_domain

SECRET = b"s" * 32
FORMAT = FormatDigest(b"f" * 16)

BASE = KvFormat(b"w", b"", "rope", "float32", "float32", 16, 1)


def test_golden_vector_of_root_and_tag() -> None:
    domain = derive_domain(SECRET, TenantId("00000000-0000-0000-0000-000000000001"), Epoch("e"), "p", FORMAT)
    assert domain.root.hex() == "adf925968117ad05d3b6aee0cac7e52b75ef957a31d4aec6f11bde060fa8f27a"
    assert domain.tag.hex() == "aa42ce079f2898698250fe2b5dc163e4"


def test_golden_vector_of_the_kv_format() -> None:
    assert BASE.digest().hex() == "e144ef28631bf795f89aca8cb7c6f3a9"


@pytest.mark.parametrize(
    "other",
    [
        make_domain("globex"),
        make_domain("acme", partition="p"),
        make_domain("acme", epoch="e2"),
        make_domain("acme", kv_format=FormatDigest(b"g" * 16)),
    ],
)
def test_each_part_of_a_domain_changes_its_root_and_tag(other) -> None:
    domain = make_domain("acme")
    assert make_domain("acme") == domain
    assert other.root != domain.root
    assert other.tag != domain.tag


def test_another_secret_is_another_root() -> None:
    a = derive_domain(b"a" * 32, TenantId("t"), Epoch("e"), "", FORMAT)
    b = derive_domain(b"b" * 32, TenantId("t"), Epoch("e"), "", FORMAT)
    assert a.root != b.root


@given(st.tuples(st.text(), st.text(), st.text()), st.tuples(st.text(), st.text(), st.text()))
def test_odd_strings_never_alias(a: tuple[str, str, str], b: tuple[str, str, str]) -> None:
    roots = [derive_domain(SECRET, TenantId(t), Epoch(e), p, FORMAT).root for t, e, p in (a, b)]
    assert (roots[0] == roots[1]) == (a == b)


@pytest.mark.parametrize(
    "changed",
    [
        replace(BASE, weights_digest=b"x"),
        replace(BASE, adapter_digest=b"x"),
        replace(BASE, attention="x"),
        replace(BASE, model_dtype="bfloat16"),
        replace(BASE, kv_dtype="bfloat16"),
        replace(BASE, block_size=32),
        replace(BASE, layout_version=2),
    ],
)
def test_everything_that_changes_bytes_changes_the_format(changed: KvFormat) -> None:
    assert changed.digest() != BASE.digest()


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        derive_domain(b"short", TenantId("t"), Epoch("e"), "", FORMAT)
