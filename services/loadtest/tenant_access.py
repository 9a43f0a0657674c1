"""Keys for a run: those that were given, and tenants and keys that are made for it and removed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from cache_store.errors import PreconditionError, StemcacheError
from services.client import AdminClient, TenantTerms

NO_KEY = (
    "give --key, --key-file or STEMCACHE_API_KEY, or the operator's API (--admin-address, --admin-token-file, or the "
    "--data-dir of a running `stemcache up`), by which tenants are made for the run and removed afterwards"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tenant that sends."""

    tenant: str
    """As the run calls it."""
    server_name: str
    """As the server calls it: of one that is made, nobody else's."""
    api_key: str = field(repr=False)
    """Empty: one is made."""
    terms: TenantTerms
    """Of a tenant that is made."""


@contextmanager
def access(
    wanted: Sequence[Wanted], admin: AdminClient | None, left: Callable[[str], None]
) -> Iterator[Mapping[str, str]]:
    """Keys by tenant, for as long as the block runs. Raises PreconditionError where one cannot be had.

    `left` is told of what was made and could not be removed: what was measured does not depend on it.
    """
    with ExitStack() as stack:
        yield {each.tenant: each.api_key or _made(each, admin, stack, left) for each in wanted}


def _removed(remove: Callable[[str], object], name: str, advice: str, left: Callable[[str], None]) -> None:
    try:
        remove(name)
    except StemcacheError as error:
        left(f"{name} was made for the run and is still there ({error}); later: {advice} {name}")


def _made(each: Wanted, admin: AdminClient | None, stack: ExitStack, left: Callable[[str], None]) -> str:
    if admin is None:
        raise PreconditionError(f"no key for tenant {each.tenant}: {NO_KEY}")
    name, names = each.server_name, {tenant.name for tenant in admin.list_tenants()}
    if name in names and each.terms != TenantTerms():
        raise PreconditionError(
            f"tenant {name} exists, and a load test does not change its quota: leave `quota` out, or set it "
            f"with `stemcache tenants quota {name}`"
        )
    if name not in names:
        admin.create_tenant(name, each.terms)
        stack.callback(_removed, admin.delete_tenant, name, "stemcache tenants delete", left)
    key = admin.create_api_key(name)
    if name in names:
        stack.callback(_removed, admin.revoke_api_key, key.key.key_id, "stemcache tenants keys revoke", left)
    return key.secret
