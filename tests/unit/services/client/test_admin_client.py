"""The operator's client against a real gRPC server."""

from __future__ import annotations

import pytest
from stemcache.admin.v1 import admin_pb2 as pb

from services.client import (
    AdminClient,
    ApiConflictError,
    ApiNotFoundError,
    BlocksByTier,
    PurgeEverything,
    PurgeModel,
    PurgePartition,
    PurgeScope,
    TenantTerms,
)
from services.client.admin_results import PurgeReceipt, WorkerPurge
from tests.support.scripted_admin import ScriptedAdmin

RECEIPT = PurgeReceipt(
    1_700_000_000,
    7,
    (
        WorkerPurge("worker-0", "a" * 32, True, BlocksByTier(5, 3, 2), 1, "", False),
        WorkerPurge("worker-1", "b" * 32, False, BlocksByTier(0, 0, 0), 0, "the worker is gone", False),
        WorkerPurge("worker-2", "c" * 32, True, BlocksByTier(0, 0, 0), 0, "", True),
    ),
    1_700_000_010,
)


@pytest.mark.parametrize(
    ("scope", "message"),
    [
        (PurgeEverything(), pb.PurgeTenantCacheRequest(tenant="acme", everything=True)),
        (PurgePartition(""), pb.PurgeTenantCacheRequest(tenant="acme", partition="")),
        (PurgeModel("m"), pb.PurgeTenantCacheRequest(tenant="acme", model="m")),
    ],
)
def test_purges(admin: ScriptedAdmin, scope: PurgeScope, message: pb.PurgeTenantCacheRequest) -> None:
    with AdminClient(admin.address, "token") as client:
        client.create_tenant("acme")
        assert client.purge_cache("acme", scope) == RECEIPT
        with pytest.raises(ApiNotFoundError):
            client.purge_cache("globex", scope)
    assert admin.purges == [message]


def test_tenants_and_keys(admin: ScriptedAdmin) -> None:
    with AdminClient(admin.address, "token") as client:
        assert client.create_tenant("acme").name == "acme"
        assert [each.name for each in client.list_tenants()] == ["acme"]
        rotated = client.rotate_epoch("acme")
        assert (rotated.tenant.epoch_unix_s, rotated.receipt) == (1_700_000_000, RECEIPT)
        assert client.create_api_key("acme").secret == "sc-k1-secret"
        client.revoke_api_key("k1")
        assert client.list_api_keys("acme")[0].revoked
        assert client.delete_tenant("acme") == RECEIPT
        assert client.list_tenants() == ()
    assert admin.token == "Bearer token"


def test_quotas(admin: ScriptedAdmin) -> None:
    with AdminClient(admin.address, "token") as client:
        tenant = client.create_tenant("acme", TenantTerms(min=0.25))
        client.set_quota("acme", TenantTerms(max_pinned=0.0, tokens_per_s=0))
        with pytest.raises(ApiNotFoundError):
            client.set_quota("globex", TenantTerms(weight=2.0))
    assert (tenant.quota.weight, tenant.quota.tiers[0].max, tenant.limits.tokens_per_s) == (1.0, 1.0, None)
    created, changed, _ = admin.terms
    assert created.tiers == [pb.TierShare(tier="device", min=0.25)]
    assert changed == pb.SetTenantQuotaRequest(tenant="acme", max_pinned=0.0, tokens_per_s=0)


def test_documents(admin: ScriptedAdmin) -> None:
    with AdminClient(admin.address, "token") as client:
        counts = client.import_tenants(client.export_tenants())
    assert (counts.num_tenants, counts.num_keys) == (1, 2)


def test_status_and_record(admin: ScriptedAdmin) -> None:
    admin.status.control_age.FromMilliseconds(1500)
    admin.status.workers.add(worker_id="worker-0", total_blocks=7)
    admin.status.degraded_reasons.extend([pb.DEGRADED_REASON_CONTROL_DATA, pb.DEGRADED_REASON_LIMITS])
    admin.status.index_copy.failed_lookups = 3
    with AdminClient(admin.address, "token") as client:
        status = client.status()
        record = client.request_record("acme", "r1")
    assert (status.version, status.control_age_s, status.workers[0].total_blocks) == ("9.9", 1.5, 7)
    assert (status.degraded_reasons, status.index_copy.failed_lookups) == (("control_data", "limits"), 3)
    assert (record.tenant, record.request_id, record.terms[0].cost) == ("acme", "r1", 4.5)


def test_errors_are_of_the_same_tree(admin: ScriptedAdmin) -> None:
    with AdminClient(admin.address, "token") as client:
        client.create_tenant("acme")
        with pytest.raises(ApiConflictError):
            client.create_tenant("acme")
        with pytest.raises(ApiNotFoundError):
            client.delete_tenant("globex")
