"""What a worker shows to Prometheus: its engine's counts, its blocks, its memory. Made at each scrape.

No tenant is named here: a worker knows tenants by their ids only, routers tell their names. The names that begin with
`vllm:` are those that dashboards and autoscalers for vLLM read (`worker/vllm_names.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cache_store.registry import WorkerRecord
from cache_store.telemetry.families import (
    Family,
    FamilyKind,
    Labels,
    counter,
    counters,
    family,
    gauge,
    gauges,
    histogram,
)
from cache_store.telemetry.process import process_families, resident_bytes
from cache_store.tier_kind import TierKind
from cache_store.usage import TierLoad
from worker.engine_books import Vitals
from worker.meter import Meter
from worker.vllm_names import vllm_families

TIERS = ("device", "host", "disk", "peer")


@dataclass(frozen=True, slots=True)
class WorkerNow:
    """A worker at a scrape."""

    record: WorkerRecord
    vitals: Vitals
    meter: Meter
    host_pool_bytes: int
    """Of all pools in this process' memory."""
    waiting_events: int
    """Changes of blocks that are not in the index yet."""
    is_index_current: bool
    stalled_s: float


def worker_families(now: WorkerNow) -> Iterator[Family]:
    """All that a worker shows."""
    labels: Labels = (("worker", now.record.worker_id),)
    yield from process_families()
    yield from _block_families(now, labels)
    yield from _memory_families(now, labels)
    yield from _pressure_families(now.record, labels)
    yield from _tier_families(now.record.load.tiers, labels)
    yield from _request_families(now, labels)
    yield from _step_families(now.meter, labels)
    yield from _exchange_families(now, labels)
    yield from vllm_families(now.record, now.vitals, now.meter)


def _block_families(now: WorkerNow, labels: Labels) -> Iterator[Family]:
    vitals, tiers = now.vitals, now.record.load.tiers
    states = {
        ("device", "held"): vitals.held_blocks,
        ("device", "cached"): vitals.used_blocks - vitals.held_blocks,
        ("device", "free"): vitals.total_blocks - vitals.used_blocks,
    }
    for tier in tiers:
        states[tier.tier, "cached"] = tier.used_blocks
        states[tier.tier, "free"] = tier.num_blocks - tier.used_blocks
    values = [((*labels, ("tier", tier), ("state", state)), float(num)) for (tier, state), num in states.items()]
    text = "Blocks by what they are: held by requests or pins, cached, or free."
    yield family("stemcache_blocks", FamilyKind.GAUGE, text, values)
    lent = {str(tier): float(num) for tier, num in vitals.lent_blocks.items()}
    yield gauges("stemcache_lent_blocks", "Guaranteed blocks that other tenants use now.", "tier", lent, labels)
    yield gauge("stemcache_block_tokens", "Tokens of one block.", now.record.block_size, labels)


def _memory_families(now: WorkerNow, labels: Labels) -> Iterator[Family]:
    record, vitals = now.record, now.vitals
    block_bytes = record.block_size * record.kv_bytes_per_token
    held_bytes = vitals.held_blocks * block_bytes
    sequence_bytes = vitals.active_sequences * record.kv_bytes_per_sequence
    yield gauge("stemcache_kv_pool_bytes", "Bytes of all pools of the device.", record.kv_pool_bytes, labels)
    yield gauge("stemcache_kv_held_bytes", "Bytes of blocks that requests and pins hold.", held_bytes, labels)
    yield gauge("stemcache_active_tokens", "Tokens that running requests read.", vitals.active_tokens, labels)
    yield gauge("stemcache_active_sequences", "Sequences that run.", vitals.active_sequences, labels)
    yield gauge(
        "stemcache_kv_predicted_bytes_per_token",
        "What a token takes, by the model's shape.",
        record.kv_bytes_per_token,
        labels,
    )
    if vitals.active_tokens:
        yield gauge(
            "stemcache_kv_real_bytes_per_token",
            "Held bytes by active tokens: more where blocks are not full, less where requests share them.",
            (held_bytes + sequence_bytes) / vitals.active_tokens,
            labels,
        )
    overhead = resident_bytes() - now.host_pool_bytes
    yield gauge(
        "stemcache_process_overhead_bytes",
        "Memory of the process beside its pools: weights, code, buffers. Below 0 while pools are not written yet.",
        overhead,
        labels,
    )


def _pressure_families(record: WorkerRecord, labels: Labels) -> Iterator[Family]:
    pressure = record.load.pressure
    room = pressure.evicted_blocks - pressure.lent_back_blocks - pressure.expired_blocks - pressure.trimmed_blocks
    evicted = {
        "room": max(0, room),
        "lent_back": pressure.lent_back_blocks,
        "own_maximum": pressure.trimmed_blocks,
        "expired": pressure.expired_blocks,
    }
    yield counters("stemcache_evicted_blocks_total", "Blocks that left the device's cache.", "reason", evicted, labels)
    yield counter(
        "stemcache_demoted_blocks_total", "Of them those that went to a lower tier.", pressure.demoted_blocks, labels
    )
    yield counter(
        "stemcache_preemptions_total", "Running requests that gave up their blocks.", pressure.preemptions, labels
    )
    yield counter(
        "stemcache_stopped_admissions_total",
        "Steps in which a request waited for blocks.",
        pressure.stopped_admissions,
        labels,
    )
    yield counter("stemcache_yielded_pins_total", "Pins ended before their time.", pressure.yielded_pins, labels)
    yield counter(
        "stemcache_never_fitting_requests_total", "Requests that cannot fit.", pressure.refused_requests, labels
    )
    audit = record.load.audit
    yield counter(
        "stemcache_audited_blocks_total", "Cached blocks compared with computed ones.", audit.checked_blocks, labels
    )
    yield counter("stemcache_audit_mismatches_total", "Of them those that differed.", audit.mismatches, labels)


def _tier_families(tiers: tuple[TierLoad, ...], labels: Labels) -> Iterator[Family]:
    for name, text in _TIER_COUNTERS.items():
        values = [((*labels, ("tier", str(tier.tier))), float(getattr(tier, f"{name}_blocks"))) for tier in tiers]
        yield family(f"stemcache_tier_{name}_blocks_total", FamilyKind.COUNTER, text, values)
    speeds = [((*labels, ("tier", str(tier.tier))), tier.load_block_s) for tier in tiers if tier.load_block_s]
    yield family("stemcache_tier_load_block_seconds", FamilyKind.GAUGE, "Measured, to read one block back.", speeds)


_TIER_COUNTERS = {
    "stored": "Blocks written to the tier.",
    "loaded": "Blocks read back to the device.",
    "evicted": "Blocks evicted from the tier.",
    "dropped": "Blocks that were not worth writing, or had no room.",
    "failed": "Writes and reads that failed.",
}


def _request_families(now: WorkerNow, labels: Labels) -> Iterator[Family]:
    load, meter = now.record.load, now.meter
    yield gauge("stemcache_worker_running_requests", "Requests that run.", load.running_requests, labels)
    yield gauge("stemcache_worker_waiting_requests", "Requests that wait.", load.waiting_requests, labels)
    yield gauge(
        "stemcache_queued_prefill_tokens", "Prompt tokens still to be computed.", load.queued_prefill_tokens, labels
    )
    yield gauge("stemcache_prefill_tokens_per_second", "Measured; 0 before.", load.prefill_tokens_per_s, labels)
    yield counter("stemcache_worker_started_requests_total", "Requests that began.", meter.num_started, labels)
    yield counter(
        "stemcache_worker_failed_requests_total", "Requests that ended with an error.", meter.num_failed, labels
    )
    yield counter(
        "stemcache_worker_prompt_tokens_total", "Prompt tokens of requests that began.", meter.prompt_tokens, labels
    )
    hits = dict(zip(TIERS, meter.cached_tokens, strict=True))
    yield counters("stemcache_worker_hit_tokens_total", "Of them those that a tier had.", "tier", hits, labels)
    yield counter(
        "stemcache_worker_computed_tokens_total", "Tokens computed in prefills.", meter.prefill_tokens, labels
    )
    yield counter("stemcache_worker_generated_tokens_total", "Tokens made.", meter.generated_tokens, labels)
    yield counter(
        "stemcache_worker_recomputed_tokens_total",
        "Tokens computed again after preemptions.",
        meter.recomputed_tokens,
        labels,
    )
    yield counter("stemcache_worker_queue_seconds_total", "Time that requests waited.", meter.queue_s, labels)
    setbacks = {"preempted": meter.preempted_s, "recompute": meter.recompute_s, "swap": meter.swap_s}
    yield counters(
        "stemcache_worker_setback_seconds_total",
        "Time that requests stood still, computed again what preemptions threw away, or waited for lower tiers.",
        "kind",
        setbacks,
        labels,
    )
    yield histogram("stemcache_worker_queue_seconds", "Waiting of requests that ended.", meter.queue, labels)
    yield histogram(
        "stemcache_inter_token_latency_seconds", "Between two tokens of a sequence.", meter.token_gap, labels
    )


def _step_families(meter: Meter, labels: Labels) -> Iterator[Family]:
    parts = {
        "schedule": meter.schedule_s,
        "forward": meter.forward_s,
        "sample": meter.sample_s,
        "commit": meter.commit_s,
    }
    yield counters("stemcache_step_seconds_total", "Time of steps, by part.", "part", parts, labels)
    yield histogram("stemcache_step_duration_seconds", "Time of steps that computed something.", meter.step, labels)


def _exchange_families(now: WorkerNow, labels: Labels) -> Iterator[Family]:
    peers = now.record.load.peers
    yield counter(
        "stemcache_peer_fetched_blocks_total", "Blocks taken from other workers.", peers.fetched_blocks, labels
    )
    yield counter("stemcache_peer_fetched_bytes_total", "Their bytes.", peers.fetched_bytes, labels)
    yield counter("stemcache_peer_served_blocks_total", "Blocks given to other workers.", peers.served_blocks, labels)
    yield counter("stemcache_peer_fetches_total", "Times that blocks were asked for.", peers.fetches, labels)
    yield counter(
        "stemcache_peer_failed_fetches_total", "Of them those that brought nothing.", peers.failed_fetches, labels
    )
    yield gauge(
        "stemcache_unpublished_events", "Changes of blocks that are not in the index yet.", now.waiting_events, labels
    )
    yield gauge(
        "stemcache_index_current", "1 while the index has what this worker holds.", now.is_index_current, labels
    )
    yield gauge("stemcache_draining", "1 while it takes nothing new.", now.record.draining, labels)
    yield gauge("stemcache_stalled_seconds", "Since the last step, while requests are open.", now.stalled_s, labels)


def pool_bytes_in_memory(record: WorkerRecord, device: str, host_blocks: int) -> int:
    """Bytes of pools that count in a process' resident memory: not those of a GPU."""
    on_device = 0 if device.startswith("cuda") else record.kv_pool_bytes
    return on_device + host_blocks * record.block_size * record.kv_bytes_per_token


def host_blocks(record: WorkerRecord) -> int:
    """Blocks that fit into the host's tier."""
    return sum(tier.num_blocks for tier in record.load.tiers if tier.tier is TierKind.HOST)
