"""Adapters as control data: changes, who sees them, records, what workers are told."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from cache_store.adapters import MAX_ADAPTERS, Adapter
from cache_store.domain import AdapterDigest, TenantId
from cache_store.errors import CorruptDataError, InvalidRequestError, NotFoundError, PreconditionError
from services.tenants.adapter import (
    LoadedAdapter,
    adapter_fields,
    adapter_from,
    joined,
    published,
    with_loaded,
    with_unloaded,
)
from services.tenants.fields import Fields, parse_object, to_json

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
ONE, TWO = AdapterDigest(b"1" * 32), AdapterDigest(b"2" * 32)
MINE = LoadedAdapter("mine", "m", "/mine", ONE, frozenset({ACME}), 0, 5.0)
NONE: MappingProxyType[str, LoadedAdapter] = MappingProxyType({})


def test_each_change_of_a_name_counts_and_no_change_does_not() -> None:
    first = with_loaded(NONE, MINE)
    assert first["mine"] == replace(MINE, number=1)
    assert with_loaded(first, replace(MINE, change_unix_s=9.0)) is first
    for change in ({"digest": TWO}, {"tenants": None}, {"folder": "/other"}, {"base": "n"}):
        assert with_loaded(first, replace(MINE, **change))["mine"].number == 2
    gone = with_unloaded(first, "mine", 7.0)
    assert not gone["mine"].is_loaded
    assert with_loaded(gone, MINE)["mine"].number == 3


def test_what_is_not_loaded_cannot_be_unloaded() -> None:
    gone = with_unloaded(with_loaded(NONE, MINE), "mine", 7.0)
    for adapters in (NONE, gone):
        with pytest.raises(NotFoundError, match="no adapter named 'mine'"):
            with_unloaded(adapters, "mine", 8.0)


def test_it_exists_for_its_tenants_alone() -> None:
    assert MINE.is_visible_to(ACME)
    assert not MINE.is_visible_to(GLOBEX)
    assert replace(MINE, tenants=None).is_visible_to(GLOBEX)
    assert not replace(MINE, tenants=frozenset()).is_visible_to(ACME), "nobody is not everybody"
    gone = with_unloaded(with_loaded(NONE, MINE), "mine", 7.0)["mine"]
    assert not gone.is_visible_to(ACME)


def test_no_more_are_loaded_than_there_may_be() -> None:
    adapters = NONE
    for number in range(MAX_ADAPTERS):
        adapters = with_loaded(adapters, replace(MINE, name=f"a{number}"))
    with pytest.raises(PreconditionError, match="64 adapters are loaded"):
        with_loaded(adapters, MINE)
    with_loaded(adapters, replace(MINE, name="a0", digest=TWO))
    with_loaded(with_unloaded(adapters, "a0", 1.0), MINE)


def test_workers_are_told_what_is_loaded_and_not_whose_it_is() -> None:
    adapters = with_unloaded(with_loaded(with_loaded(NONE, MINE), replace(MINE, name="a")), "a", 1.0)
    assert published(adapters.values()) == (Adapter("mine", "m", "/mine", ONE),)


@pytest.mark.parametrize("adapter", [MINE, replace(MINE, tenants=None), replace(MINE, digest=AdapterDigest(b""))])
def test_a_record_survives(adapter: LoadedAdapter) -> None:
    assert adapter_from("mine", parse_object(to_json(adapter_fields(adapter)), "record")) == adapter


@pytest.mark.parametrize(
    "change", [{"tenants": "acme"}, {"tenants": [1]}, {"digest": "xy"}, {"digest": None}, {"folder": "a\nb"}]
)
def test_a_damaged_record_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(CorruptDataError, match="record"):
        adapter_from("mine", Fields({**adapter_fields(MINE), **change}, "record"))


@pytest.mark.parametrize("name", ["", "a b", "a=b", "a@b", "a/b", "-a", "a-", "x" * 65, "é"])
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot name an adapter"):
        replace(MINE, name=name)


def test_of_two_states_the_one_with_more_changes_is_in_force() -> None:
    loaded = with_loaded(NONE, MINE)
    gone = with_unloaded(loaded, "mine", 7.0)
    assert joined(loaded, gone) == joined(gone, loaded) == gone
