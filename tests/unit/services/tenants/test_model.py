"""Names of tenants, and what values show of themselves."""

from __future__ import annotations

import uuid

import pytest

from cache_store.errors import InvalidRequestError
from services.tenants.api_key import new_api_key
from services.tenants.model import MAX_NAME_CHARS, checked_name, new_epoch, new_tenant


@pytest.mark.parametrize("name", ["a", "0", "acme", "acme-2", "a--b", "x" * MAX_NAME_CHARS])
def test_good_names(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-",
        "-a",
        "a-",
        "Acme",
        "a b",
        "a_b",
        "a.b",
        "a/b",
        "a:b",
        "acme\n",
        "é",
        "ａ",
        "٣",
        "x" * (MAX_NAME_CHARS + 1),
    ],
)
def test_bad_names_are_told_what_would_work(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"lower case letters, digits and dashes.*'acme-2'") as caught:
        checked_name(name)
    assert caught.value.field == "name"


def test_a_new_tenant_has_everything_of_its_own() -> None:
    a, b = new_tenant("a", 1.0), new_tenant("b", 1.0)
    assert str(uuid.UUID(a.id)) == a.id
    assert len({a.id, b.id}) == len({a.secret, b.secret}) == len({a.epoch, b.epoch}) == 2


def test_epochs_do_not_repeat() -> None:
    assert len({new_epoch() for _ in range(1000)}) == 1000


def test_values_do_not_show_their_secrets() -> None:
    tenant = new_tenant("acme", 1.0)
    made = new_api_key(tenant.id, 1.0)
    assert repr(tenant.secret) not in repr(tenant)
    assert made.text not in repr(made)
    assert repr(made.key.secret_hash) not in repr(made)
