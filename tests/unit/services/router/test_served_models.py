"""What a tenant can call: names of models and adapters, which workers count for one, and what stays hidden."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType

import pytest

from cache_store.adapters import AdapterReport
from cache_store.clock import ManualClock
from cache_store.domain import AdapterDigest, FormatDigest, ScopeKind, scope_name
from cache_store.errors import InvalidRequestError, NotFoundError, UnavailableError
from cache_store.memory_registry import MemoryRegistry
from cache_store.registry import WorkerRecord
from services.router.registry_view import RegistryView
from services.router.served_models import ServedModel, ServedModels
from services.tenants.adapter import LoadedAdapter
from services.tenants.directory import TenantDirectory
from services.tenants.model import Tenant, new_tenant
from services.tenants.state import ControlState
from services.tenants.table import table_of
from tests.support.worker_records import not_there, worker_record

ACME, GLOBEX = new_tenant("acme", 0.0), new_tenant("globex", 0.0)
OLD, NEW = AdapterDigest(b"1" * 32), AdapterDigest(b"2" * 32)
OLD_FORMAT, NEW_FORMAT = FormatDigest(b"o" * 16), FormatDigest(b"n" * 16)


def adapter(name: str, digest: AdapterDigest = NEW, base: str = "m", *tenants: Tenant) -> LoadedAdapter:
    ids = frozenset(tenant.id for tenant in tenants) if tenants else None
    return LoadedAdapter(name, base, f"/{name}", digest, ids, 1, 0.0)


def serving(worker: str, *reports: AdapterReport, model: str = "m") -> WorkerRecord:
    return replace(worker_record(worker, model=model), adapters=reports)


def report(name: str, digest: AdapterDigest = NEW, error: str = "") -> AdapterReport:
    formats = {OLD: OLD_FORMAT, NEW: NEW_FORMAT}
    return AdapterReport(name, digest, FormatDigest(b"") if error else formats[digest], error)


async def models(
    adapters: Iterable[LoadedAdapter], workers: Iterable[WorkerRecord], known: Iterable[str] = ()
) -> ServedModels:
    clock = ManualClock()
    directory = TenantDirectory(clock)
    table = table_of([ACME, GLOBEX], [], [], adapters)
    directory.install(ControlState(None, replace(table, adapters=MappingProxyType(dict(table.adapters)))))
    registry = MemoryRegistry(clock)
    view = RegistryView(registry, clock, {}, lambda _: None, not_there)
    for record in workers:
        await registry.renew(record)
    await view.poll()
    return ServedModels(directory, view, known)


async def test_a_worker_counts_for_an_adapter_whose_content_it_reports() -> None:
    workers = [
        serving("a", report("mine")),
        serving("b", report("mine", OLD)),
        serving("c", report("mine", NEW, "its folder is gone")),
        serving("d", report("other")),
        serving("e", report("mine"), model="another"),
    ]
    served = await models([adapter("mine")], workers)
    mine = served.named(ACME.id, "mine")
    assert mine == ServedModel("mine", "m", NEW)
    (record,) = served.workers_of(mine)
    assert (record.worker_id, record.model, record.kv_format) == ("a", "mine", NEW_FORMAT)
    assert [each.worker_id for each in served.workers_of(served.named(ACME.id, "m"))] == ["a", "b", "c", "d"]


async def test_an_adapter_that_nobody_serves_now_is_unavailable_and_not_listed() -> None:
    served = await models([adapter("mine")], [serving("a")])
    with pytest.raises(UnavailableError, match="no worker serves model 'mine' now"):
        served.workers_of(served.named(ACME.id, "mine"))
    assert [model.name for model, _ in served.listed(ACME.id)] == ["m"]


async def test_names_that_are_not_a_tenants_are_unknown_to_it() -> None:
    served = await models([adapter("mine", NEW, "m", ACME)], [serving("a", report("mine"))])
    assert list(served.of_tenant(ACME.id)) == ["m", "mine"]
    with pytest.raises(NotFoundError) as hidden:
        served.named(GLOBEX.id, "mine")
    with pytest.raises(NotFoundError) as unknown:
        served.named(GLOBEX.id, "nope")
    assert str(hidden.value).replace("mine", "nope") == str(unknown.value)
    assert str(unknown.value).endswith("served are: m")
    assert [model.name for model, _ in served.listed(GLOBEX.id)] == ["m"]


async def test_no_name_means_the_only_model_whatever_adapters_there_are() -> None:
    served = await models([adapter("mine")], [serving("a", report("mine"))])
    assert served.named(ACME.id, "") == ServedModel("m", "m")
    several = await models([adapter("mine")], [serving("a", report("mine")), serving("b", model="n")])
    with pytest.raises(InvalidRequestError, match="name one of the models that are served: m, mine, n"):
        several.named(ACME.id, "")


async def test_a_model_goes_before_an_adapter_of_its_name() -> None:
    served = await models([adapter("m"), adapter("n")], [serving("a", report("n")), serving("b", model="n")])
    assert served.named(ACME.id, "m") == ServedModel("m", "m")
    assert served.named(ACME.id, "n") == ServedModel("n", "n")


async def test_an_adapter_of_a_model_that_is_not_here_is_unknown() -> None:
    served = await models([adapter("mine", NEW, "gone")], [serving("a")])
    with pytest.raises(NotFoundError):
        served.named(ACME.id, "mine")
    at_hand = await models([adapter("mine", NEW, "gone")], [serving("a")], known=["gone"])
    assert at_hand.named(ACME.id, "mine") == ServedModel("mine", "gone", NEW)


async def test_scopes_lead_back_to_names() -> None:
    served = await models([adapter("mine", NEW, "m", ACME)], [serving("a")])
    name = scope_name(ACME.secret, ScopeKind.MODEL, "mine")
    assert served.scopes(ACME)[name] == "mine"
    assert set(served.scopes(GLOBEX).values()) == {"m"}
