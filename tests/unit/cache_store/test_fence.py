"""Which domains a fence lets through, and fences as bytes."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.cluster_mac import sign_body
from cache_store.domain import Domain, Epoch, ScopeKind, ScopeName, TenantId, scope_name
from cache_store.encoding import encode
from cache_store.errors import CorruptDataError, UnauthenticatedError, VersionError
from cache_store.fence import Fence, FenceNotice, Mark, Scope, derive_fenced_domain
from cache_store.fence_document import _PERSON, read_fences, sign_notice, verify_notice, write_fences
from tests.support.domains import FORMAT

KEY = b"k" * 32
SECRET = b"s" * 32
ACME = TenantId("acme")


def fence(rotations: int = 1, **marks: int) -> Fence:
    """`marks`: how often a partition ("p_…") or model ("m_…") was purged."""
    kinds = {"p": ScopeKind.PARTITION, "m": ScopeKind.MODEL}
    made = {
        Scope(kinds[name[0]], scope_name(SECRET, kinds[name[0]], name)): Mark(number, f"value {number}")
        for name, number in marks.items()
    }
    return Fence(ACME, Epoch(f"epoch {rotations}"), rotations, MappingProxyType(made))


def domain(by: Fence, partition: str = "p_a", model: str = "m_a") -> Domain:
    return derive_fenced_domain(SECRET, by, partition, model, FORMAT)


def test_without_marks_domains_have_the_tenants_epoch() -> None:
    assert domain(fence()).epoch == domain(fence()).tenant_epoch == "epoch 1"


@pytest.mark.parametrize("mark", ["p_a", "m_a"])
def test_a_mark_changes_the_domains_of_its_partition_or_model_and_no_others(mark: str) -> None:
    before, after = fence(), fence(**{mark: 1})
    assert domain(after).root != domain(before).root
    assert domain(after, "p_b", "m_b").root == domain(before, "p_b", "m_b").root
    assert domain(after).tenant_epoch == "epoch 1"


def test_each_purge_makes_other_domains() -> None:
    fences = [fence(), fence(p_a=1), fence(p_a=2), fence(m_a=1), fence(p_a=1, m_a=1), fence(2)]
    assert len({domain(each).root for each in fences}) == len(fences)


def test_a_partition_and_a_model_of_one_name_are_different_scopes() -> None:
    assert scope_name(SECRET, ScopeKind.PARTITION, "x") != scope_name(SECRET, ScopeKind.MODEL, "x")


def test_names_of_scopes_tell_nothing_without_the_secret() -> None:
    assert scope_name(SECRET, ScopeKind.PARTITION, "x") != scope_name(b"o" * 32, ScopeKind.PARTITION, "x")
    assert "p_a" not in repr(domain(fence()))


def test_orders_grow_with_purges_and_rotations() -> None:
    orders = [fence().order, fence(p_a=1).order, fence(p_a=2).order, fence(p_a=2, m_a=1).order, fence(2).order]
    assert orders == sorted(set(orders))


def test_a_request_derived_by_an_older_fence_is_admitted_where_its_own_scope_was_not_purged() -> None:
    old, new = fence(), fence(p_a=1)
    assert not new.admits(domain(old), old.order)
    assert new.admits(domain(old, "p_b"), old.order)
    assert new.admits(domain(new), new.order)


def test_a_request_derived_by_a_newer_fence_is_admitted() -> None:
    old, new = fence(), fence(p_a=1)
    assert old.admits(domain(new), new.order)


def test_of_two_fences_of_one_order_the_other_ones_domains_are_not_admitted() -> None:
    assert not fence(p_a=1).admits(domain(fence(m_a=1)), fence(m_a=1).order)


texts = st.text(max_size=9)
marks = st.dictionaries(
    st.builds(Scope, st.sampled_from(ScopeKind), texts.map(ScopeName)),
    st.builds(Mark, st.integers(0, 1 << 40), texts),
    max_size=4,
).map(MappingProxyType)
fences = st.builds(Fence, texts.map(TenantId), texts.map(Epoch), st.integers(0, 1 << 40), marks)


@given(st.lists(fences, max_size=5, unique_by=lambda each: each.tenant))
def test_fences_come_back_equal(written: list[Fence]) -> None:
    assert read_fences(write_fences(written)) == {each.tenant: each for each in written}


@given(st.lists(fences, min_size=1, max_size=3), st.integers(min_value=1), st.binary(max_size=9))
def test_damaged_fences_are_refused(written: list[Fence], cut: int, tail: bytes) -> None:
    data = write_fences(written)
    with pytest.raises(CorruptDataError):
        read_fences(data[: -(cut % len(data)) or None] + b"\xff" * 14 + tail)


@given(fences, st.booleans(), st.integers(0, 1 << 60))
def test_a_notice_comes_back_equal(about: Fence, is_deleted: bool, generation: int) -> None:
    notice = FenceNotice(about.tenant, None if is_deleted else about, generation)
    assert verify_notice(KEY, sign_notice(KEY, notice)) == notice


@pytest.mark.parametrize("data", [b"", b"x", bytes(64), sign_notice(b"o" * 32, FenceNotice(ACME, fence(), 1))])
def test_a_notice_that_was_not_signed_under_the_clusters_key_is_refused(data: bytes) -> None:
    with pytest.raises(UnauthenticatedError, match="MAC"):
        verify_notice(KEY, data)


def test_a_notice_of_another_version_is_refused_by_name() -> None:
    body = encode(99, "acme", 1, None)
    with pytest.raises(VersionError, match="has version 99"):
        verify_notice(KEY, body + sign_body(KEY, body, _PERSON))


def test_a_notice_is_about_its_own_tenant() -> None:
    body = encode(1, "globex", 1, write_fences([fence()]))
    with pytest.raises(CorruptDataError, match="other fields"):
        verify_notice(KEY, body + sign_body(KEY, body, _PERSON))
