"""An adapter as control data: where its files lie, what their content is, and who may call it. Pure.

Like everything in the control data it only grows: of two states of a name the one with more changes is the newer, and
one that was unloaded stays on record as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from cache_store.adapters import MAX_ADAPTERS, MAX_FOLDER_CHARS, Adapter, checked_name
from cache_store.domain import NO_ADAPTER, AdapterDigest, TenantId
from cache_store.errors import CorruptDataError, InvalidRequestError, NotFoundError, PreconditionError
from services.tenants.fields import Fields, JsonObject


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """One name. Raises InvalidRequestError for a name or folder that cannot be one."""

    name: str
    base: str
    """Model that it adapts."""
    folder: str
    digest: AdapterDigest
    """Empty: it was unloaded."""
    tenants: frozenset[TenantId] | None
    """Who may call it; None: everybody. Deleted tenants stay in it, so that it never becomes everybody's."""
    number: int
    """Changes of this name: of two states the one with more is the newer."""
    change_unix_s: float

    def __post_init__(self) -> None:
        checked_name(self.name)
        if len(self.folder) > MAX_FOLDER_CHARS or not self.folder.isprintable():
            raise InvalidRequestError(
                "folder", f"the path of a folder has at most {MAX_FOLDER_CHARS} printable letters"
            )

    @property
    def is_loaded(self) -> bool:
        """Whether it is to be served."""
        return self.digest != NO_ADAPTER

    def is_visible_to(self, tenant: TenantId) -> bool:
        """Whether it exists for that tenant."""
        return self.is_loaded and (self.tenants is None or tenant in self.tenants)

    @property
    def published(self) -> Adapter:
        """What workers are told."""
        return Adapter(self.name, self.base, self.folder, self.digest)


Adapters = Mapping[str, LoadedAdapter]
"""By name, those that were unloaded too."""


def with_loaded(adapters: Adapters, adapter: LoadedAdapter) -> Adapters:
    """With that adapter in place of another one of its name; the same mapping where nothing of it changes.

    Raises PreconditionError where as many as there may be are loaded.
    """
    before = adapters.get(adapter.name)
    if before is not None and replace(before, number=0, change_unix_s=0) == replace(adapter, number=0, change_unix_s=0):
        return adapters
    others = sum(each.is_loaded for each in adapters.values() if each.name != adapter.name)
    if others >= MAX_ADAPTERS:
        raise PreconditionError(f"{others} adapters are loaded, as many as there may be; unload one first")
    return _with(adapters, replace(adapter, number=_next(before)))


def with_unloaded(adapters: Adapters, name: str, now_unix_s: float) -> Adapters:
    """Raises NotFoundError where none of that name is loaded."""
    before = adapters.get(name)
    if before is None or not before.is_loaded:
        raise NotFoundError(
            f"no adapter named {name[:64]!r} is loaded; `stemcache adapters list` shows those there are"
        )
    gone = replace(before, digest=NO_ADAPTER, tenants=None, number=_next(before), change_unix_s=now_unix_s)
    return _with(adapters, gone)


def joined(a: Adapters, b: Adapters) -> Adapters:
    """Of each name the newer state, of two states of the control data."""
    if a == b:
        return a
    return MappingProxyType(
        {name: max((each[name] for each in (a, b) if name in each), key=_order) for name in a.keys() | b.keys()}
    )


def published(adapters: Iterable[LoadedAdapter]) -> tuple[Adapter, ...]:
    """What workers are told: the first MAX_ADAPTERS by name, where two stores that were joined had more."""
    loaded = sorted((each for each in adapters if each.is_loaded), key=lambda each: each.name)
    return tuple(each.published for each in loaded[:MAX_ADAPTERS])


def adapter_fields(adapter: LoadedAdapter) -> JsonObject:
    """Its record."""
    return {
        "base": adapter.base,
        "folder": adapter.folder,
        "digest": adapter.digest.hex(),
        "tenants": None if adapter.tenants is None else sorted(adapter.tenants),
        "number": adapter.number,
        "change_unix_s": adapter.change_unix_s,
    }


def adapter_from(name: str, fields: Fields) -> LoadedAdapter:
    """Inverse of `adapter_fields`. Raises CorruptDataError."""
    tenants = fields.texts_or_none("tenants")
    try:
        return LoadedAdapter(
            name=name,
            base=fields.text("base"),
            folder=fields.text("folder"),
            digest=AdapterDigest(bytes.fromhex(fields.text("digest"))),
            tenants=None if tenants is None else frozenset(map(TenantId, tenants)),
            number=fields.integer("number"),
            change_unix_s=fields.number("change_unix_s"),
        )
    except (InvalidRequestError, ValueError) as error:
        raise CorruptDataError(f"{fields.what}: {error}") from error


def _with(adapters: Adapters, adapter: LoadedAdapter) -> Adapters:
    return MappingProxyType({**adapters, adapter.name: adapter})


def _next(before: LoadedAdapter | None) -> int:
    return 1 if before is None else before.number + 1


def _order(adapter: LoadedAdapter) -> tuple[object, ...]:
    """By changes, then in some way that is the same everywhere."""
    tenants = ("",) if adapter.tenants is None else tuple(sorted(adapter.tenants))
    return (adapter.number, adapter.change_unix_s, adapter.digest, adapter.base, adapter.folder, tenants)
