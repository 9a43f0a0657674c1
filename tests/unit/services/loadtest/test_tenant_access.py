"""Tenants that are made for a run go after it, and where they cannot, the run has its result all the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from cache_store.errors import UnavailableError
from services.client import AdminClient, TenantTerms
from services.loadtest.tenant_access import Wanted, access


class ScriptedAdmin:
    """Makes tenants and keys; removes them as long as it is there."""

    def __init__(self, *there: str) -> None:
        self.names = set(there)
        self.keys: set[str] = set()
        self.is_away = False

    def list_tenants(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.names]

    def create_tenant(self, name: str, terms: TenantTerms) -> None:
        self.names.add(name)

    def create_api_key(self, name: str) -> Any:
        self.keys.add(f"key-of-{name}")
        return SimpleNamespace(key=SimpleNamespace(key_id=f"key-of-{name}"), secret=f"sc-{name}")

    def delete_tenant(self, name: str) -> None:
        self._require()
        self.names.remove(name)

    def revoke_api_key(self, key_id: str) -> None:
        self._require()
        self.keys.remove(key_id)

    def _require(self) -> None:
        if self.is_away:
            raise UnavailableError("nobody listens", 1.0)


WANTED = [Wanted(name, name, "", TenantTerms()) for name in ("new", "known")]


def test_what_was_made_is_removed_and_what_was_there_stays() -> None:
    admin, left = ScriptedAdmin("known"), list[str]()
    with access(WANTED, cast(AdminClient, admin), left.append) as keys:
        assert keys == {"new": "sc-new", "known": "sc-known"}
        assert admin.names == {"new", "known"}
    assert (admin.names, admin.keys, left) == ({"known"}, {"key-of-new"}, [])


def test_what_cannot_be_removed_is_told_and_ends_nothing() -> None:
    admin, left = ScriptedAdmin("known"), list[str]()
    with access(WANTED, cast(AdminClient, admin), left.append):
        admin.is_away = True
    assert [each.rpartition("later: ")[2] for each in left] == [
        "stemcache tenants keys revoke key-of-known",
        "stemcache tenants delete new",
    ]
