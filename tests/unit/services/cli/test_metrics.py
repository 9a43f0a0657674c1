"""`stemcache metrics`: what a scraper reads, and how many labels it can get at most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.cli.exit_codes import ExitCode
from services.cli.main import main
from services.cli.metrics import MAX_TENANTS, OTHER, metrics_text
from services.client.admin_results import (
    AuditStatus,
    ClusterStatus,
    IndexCopyStatus,
    PeerStatus,
    PressureStatus,
    TenantUse,
    TierStatus,
    WindowStatus,
    WorkerStatus,
)
from tests.support.scripted_admin import ScriptedAdmin

USE = TenantUse(
    tenant="acme",
    guaranteed_blocks=1,
    max_blocks=2,
    used_blocks=3,
    held_blocks=4,
    pinned_blocks=5,
    lent_blocks=6,
    waiting_requests=7,
    evicted_blocks=8,
    host_blocks=9,
    disk_blocks=10,
)
WORKER = WorkerStatus(
    worker_id="worker-0",
    incarnation="i",
    address="a",
    model="m",
    running_requests=1,
    waiting_requests=2,
    used_blocks=3,
    total_blocks=4,
    block_size=16,
    kv_bytes_per_token=100,
    max_model_len=5,
    max_num_sequences=6,
    prefill_tokens_per_s=7.5,
    quota_generation=8,
    pressure=PressureStatus(11, 12, 13, 14, 15, 16, 17),
    tenants=(USE,),
    tiers=(TierStatus("host", 21, 22, 23, 24, 25, 26, 27, 0.5),),
    audit=AuditStatus(31, 32, 33),
    kv_pool_bytes=31,
    windows=(WindowStatus(128, 41, 42, 43, 44),),
    peers=PeerStatus(51, 52, 53, 54, 55, 56, 57, 58),
)
STATUS = ClusterStatus(
    "9.9",
    True,
    1.5,
    10,
    (WORKER,),
    (),
    17,
    ("registry", "index"),
    52,
    51,
    IndexCopyStatus(61, 62, 63, 64, 65, 66, 67, 68),
)


def samples(status: ClusterStatus) -> dict[tuple[str, str, str], float]:
    """Value by name, worker and tenant."""
    return {
        (sample.name, sample.labels.get("worker", ""), sample.labels.get("tenant", "")): sample.value
        for family in text_string_to_metric_families(metrics_text(status))
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("name", "worker", "tenant", "value"),
    [
        ("stemcache_degraded", "", "", 1),
        ("stemcache_control_age_seconds", "", "", 1.5),
        ("stemcache_control_generation", "", "", 10),
        ("stemcache_running_requests", "", "", 17),
        ("stemcache_workers", "", "", 1),
        ("stemcache_requests_total", "", "", 52),
        ("stemcache_degraded_requests_total", "", "", 51),
        ("stemcache_index_copy_domains", "", "", 61),
        ("stemcache_index_copy_digests", "", "", 62),
        ("stemcache_index_copy_followed_workers", "", "", 63),
        ("stemcache_index_copy_known_workers", "", "", 64),
        ("stemcache_index_copy_resyncs_total", "", "", 65),
        ("stemcache_worker_waiting_requests", "worker-0", "", 2),
        ("stemcache_worker_block_bytes", "worker-0", "", 1600),
        ("stemcache_worker_prefill_tokens_per_second", "worker-0", "", 7.5),
        ("stemcache_worker_quota_generation", "worker-0", "", 8),
        ("stemcache_worker_kv_pool_bytes", "worker-0", "", 31),
        ("stemcache_window_used_slots", "worker-0", "", 41),
        ("stemcache_window_total_slots", "worker-0", "", 42),
        ("stemcache_window_cached_slots", "worker-0", "", 43),
        ("stemcache_window_max_cached_slots", "worker-0", "", 44),
        ("stemcache_worker_lent_back_blocks_total", "worker-0", "", 11),
        ("stemcache_worker_evicted_blocks_total", "worker-0", "", 12),
        ("stemcache_worker_stopped_admissions_total", "worker-0", "", 13),
        ("stemcache_worker_preemptions_total", "worker-0", "", 14),
        ("stemcache_worker_yielded_pins_total", "worker-0", "", 15),
        ("stemcache_worker_refused_requests_total", "worker-0", "", 16),
        ("stemcache_worker_demoted_blocks_total", "worker-0", "", 17),
        ("stemcache_worker_audit_checked_blocks_total", "worker-0", "", 31),
        ("stemcache_worker_audit_mismatches_total", "worker-0", "", 32),
        ("stemcache_worker_audit_skipped_hits_total", "worker-0", "", 33),
        ("stemcache_worker_peer_fetched_blocks_total", "worker-0", "", 51),
        ("stemcache_worker_peer_fetched_bytes_total", "worker-0", "", 52),
        ("stemcache_worker_peer_served_blocks_total", "worker-0", "", 53),
        ("stemcache_worker_peer_served_bytes_total", "worker-0", "", 54),
        ("stemcache_worker_peer_fetches_total", "worker-0", "", 55),
        ("stemcache_worker_peer_failed_fetches_total", "worker-0", "", 56),
        ("stemcache_worker_peer_refused_blocks_total", "worker-0", "", 57),
        ("stemcache_worker_peer_declined_fetches_total", "worker-0", "", 58),
        ("stemcache_tenant_host_blocks", "worker-0", "acme", 9),
        ("stemcache_tenant_disk_blocks", "worker-0", "acme", 10),
        ("stemcache_tenant_guaranteed_blocks", "worker-0", "acme", 1),
        ("stemcache_tenant_lent_blocks", "worker-0", "acme", 6),
        ("stemcache_tenant_evicted_blocks_total", "worker-0", "acme", 8),
    ],
)
def test_everything_of_a_status_has_its_sample(name: str, worker: str, tenant: str, value: float) -> None:
    assert samples(STATUS)[(name, worker, tenant)] == value


def labelled(name: str, label: str) -> dict[str, float]:
    """Value by one label."""
    families = text_string_to_metric_families(metrics_text(STATUS))
    found = (sample for family in families for sample in family.samples if sample.name == name)
    return {sample.labels[label]: sample.value for sample in found}


def test_what_is_lacking_has_a_sample_each() -> None:
    reasons = labelled("stemcache_degraded_reason", "reason")
    assert reasons == {"control_data": 0, "registry": 1, "renewals": 0, "index": 1, "limits": 0}


def test_lookups_are_told_by_who_answered() -> None:
    assert labelled("stemcache_index_lookups_total", "answer") == {"copy": 66, "redis": 67, "none": 68}


def test_tiers_have_their_samples() -> None:
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(metrics_text(STATUS))
        for sample in family.samples
        if sample.labels.get("tier") == "host"
    }
    assert found == {
        "stemcache_tier_used_blocks": 21,
        "stemcache_tier_total_blocks": 22,
        "stemcache_tier_stored_blocks_total": 23,
        "stemcache_tier_loaded_blocks_total": 24,
        "stemcache_tier_evicted_blocks_total": 25,
        "stemcache_tier_dropped_blocks_total": 26,
        "stemcache_tier_failed_blocks_total": 27,
        "stemcache_tier_load_block_seconds": 0.5,
    }


def test_all_names_begin_alike() -> None:
    assert {name.split("_")[0] for name, _, _ in samples(STATUS)} == {"stemcache"}


def test_tenants_beyond_the_bound_are_added_up() -> None:
    many = tuple(replace(USE, tenant=f"t{at:03}", used_blocks=1_000 - at) for at in range(MAX_TENANTS + 3))
    workers = (replace(WORKER, tenants=many), replace(WORKER, worker_id="worker-1", tenants=many))
    found = samples(replace(STATUS, workers=workers))
    used = {key: value for key, value in found.items() if key[0] == "stemcache_tenant_used_blocks"}
    assert len({tenant for _, _, tenant in used}) == MAX_TENANTS + 1
    assert used[("stemcache_tenant_used_blocks", "worker-0", "t063")] == 937
    for worker in ("worker-0", "worker-1"):
        assert used[("stemcache_tenant_used_blocks", worker, OTHER)] == 936 + 935 + 934
        assert found[("stemcache_tenant_guaranteed_blocks", worker, OTHER)] == 3


def test_a_name_with_signs_of_the_format_stays_one_label() -> None:
    odd = replace(USE, tenant='a"b\\c')
    assert samples(replace(STATUS, workers=(replace(WORKER, tenants=(odd,)),)))[
        ("stemcache_tenant_used_blocks", "worker-0", 'a"b\\c')
    ]


def test_the_command_prints_them_also_of_a_system_without_workers(
    admin: ScriptedAdmin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("operator\n")
    token.chmod(0o600)
    command = ["metrics", "--admin-address", admin.address, "--admin-token-file", str(token)]
    assert main(command) == ExitCode.OK
    assert "stemcache_workers 0.0\n" in capsys.readouterr().out
