"""What a tenant can call: the models that workers serve, and the adapters of the control data that exist for it.

An adapter is called by its name, as a model is. One that is another tenant's alone answers like a name that nobody
ever gave. A worker counts for an adapter where it reports the very content that the control data names; for everything
that follows it is then a worker of that name and KV format. Holds no state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cache_store.domain import NO_ADAPTER, AdapterDigest, ScopeKind, ScopeName, TenantId, scope_name
from cache_store.errors import InvalidRequestError, NotFoundError, UnavailableError
from cache_store.registry import RENEW_S, WorkerRecord
from services.router.registry_view import RegistryView
from services.router.routing import WorkerView
from services.tenants.directory import TenantDirectory
from services.tenants.model import Tenant


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, or an adapter of one."""

    name: str
    base: str
    """The model whose tokenizer and workers it has; its own name for a model."""
    adapter: AdapterDigest = NO_ADAPTER

    def on(self, record: WorkerRecord) -> WorkerRecord | None:
        """The worker as one of this name; None where it does not serve it."""
        if record.model != self.base:
            return None
        if self.adapter == NO_ADAPTER:
            return record
        for report in record.adapters:
            if report.name == self.name and report.digest == self.adapter and not report.error:
                return replace(record, model=self.name, kv_format=report.kv_format)
        return None

    def views(self, views: Iterable[WorkerView]) -> list[WorkerView]:
        """Those of `views` that serve it, as workers of this name."""
        served = ((view, self.on(view.record)) for view in views)
        return [
            view if record is view.record else replace(view, record=record)
            for view, record in served
            if record is not None
        ]


class ServedModels:
    """Of one router."""

    def __init__(self, directory: TenantDirectory, view: RegistryView, known: Iterable[str]) -> None:
        """`known`: models of which this router has the tokenizer, whether workers serve them now or not."""
        self._directory = directory
        self._view = view
        self._known = frozenset(known)

    def models(self) -> list[str]:
        """Names of models, without adapters, sorted."""
        return sorted({*self._view.models(), *self._known})

    def of_tenant(self, tenant: TenantId) -> dict[str, ServedModel]:
        """All that the tenant can call, by name. A model goes before an adapter that has come to have its name."""
        models = self.models()
        adapters = (each for each in self._directory.adapters_of(tenant) if each.base in models)
        named = {each.name: ServedModel(each.name, each.base, each.digest) for each in adapters}
        return dict(sorted({**named, **{name: ServedModel(name, name) for name in models}}.items()))

    def named(self, tenant: TenantId, name: str) -> ServedModel:
        """What the tenant means by `name`.

        Raises NotFoundError for a name that does not exist for it, InvalidRequestError where none is given and several
        models are served, UnavailableError where nothing is known yet.
        """
        here = self._view.models()
        if name in here or name in self._known:
            return ServedModel(name, name)
        models = self.models()
        if not models:
            raise UnavailableError("no worker is ready yet", RENEW_S)
        if not name and len(models) == 1:
            return ServedModel(models[0], models[0])
        served = self.of_tenant(tenant)
        if not name:
            raise InvalidRequestError("model", f"name one of the models that are served: {', '.join(served)}")
        if name not in served:
            raise NotFoundError(f"model {name[:64]!r} is not served here; served are: {', '.join(served)}")
        return served[name]

    def workers_of(self, model: ServedModel) -> tuple[WorkerRecord, ...]:
        """Workers that serve it. Raises UnavailableError where there are none now."""
        served = map(model.on, self._view.known_records())
        records = tuple([record for record in served if record is not None])
        if not records:
            raise UnavailableError(f"no worker serves model {model.name!r} now", RENEW_S)
        return records

    def listed(self, tenant: TenantId) -> list[tuple[ServedModel, WorkerRecord]]:
        """What the tenant can call now, by name, with a worker that serves it."""
        found = []
        for model in self.of_tenant(tenant).values():
            record = next((record for each in self._view.records() if (record := model.on(each)) is not None), None)
            if record is not None:
                found.append((model, record))
        return found

    def scopes(self, tenant: Tenant) -> dict[ScopeName, str]:
        """Names of all that the tenant can call, by its keyed names of them."""
        return {scope_name(tenant.secret, ScopeKind.MODEL, name): name for name in self.of_tenant(tenant.id)}
