"""Records of workers as JSON, read only where version and form are those of this build."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields, replace

from cache_store.adapters import MAX_ADAPTERS, AdapterReport
from cache_store.domain import AdapterDigest, FormatDigest, TenantId
from cache_store.errors import CorruptDataError
from cache_store.index import Incarnation
from cache_store.registry import (
    MAX_TENANTS_TOLD,
    MAX_WINDOWS_TOLD,
    PROTOCOL_VERSION,
    WorkerId,
    WorkerLoad,
    WorkerRecord,
)
from cache_store.tier_kind import TierKind
from cache_store.usage import AuditCounts, PeerCounts, Pressure, TenantUse, TierLoad, WindowLoad

UNREADABLE_VERSION = 0
"""Protocol version of what is no record."""

MAX_TENANT_CHARS = 64
"""Of a tenant's id in a record."""


def write_record(record: WorkerRecord) -> bytes:
    """JSON text of `record`, with at most MAX_TENANTS_TOLD tenants and MAX_ADAPTERS adapters."""
    tenants, windows = record.load.tenants[:MAX_TENANTS_TOLD], record.load.windows[:MAX_WINDOWS_TOLD]
    bounded = replace(record, load=replace(record.load, tenants=tenants, windows=windows))
    values = asdict(bounded) | {
        "kv_format": record.kv_format.hex(),
        "adapters": [_report_fields(each) for each in record.adapters[:MAX_ADAPTERS]],
    }
    return json.dumps(values, separators=(",", ":")).encode()


def read_record(worker_id: WorkerId, incarnation: Incarnation, data: bytes) -> WorkerRecord:
    """Record of `incarnation`, under whose name `data` was found.

    Data of another protocol version, or that is no record of this incarnation, gives a record that tells the version
    and nothing else.
    """
    try:
        values = _Fields(json.loads(data))
        version = values.count("protocol_version")
        if version != PROTOCOL_VERSION:
            return refused_record(version, worker_id, incarnation)
        record = _read(values)
    except (ValueError, RecursionError, CorruptDataError):
        return refused_record(UNREADABLE_VERSION, worker_id, incarnation)
    if (record.worker_id, record.incarnation) != (worker_id, incarnation):
        return refused_record(UNREADABLE_VERSION, worker_id, incarnation)
    return record


def refused_record(version: int, worker_id: WorkerId, incarnation: Incarnation) -> WorkerRecord:
    """A record of another version: nothing but its name is known."""
    return WorkerRecord(
        protocol_version=version,
        worker_id=worker_id,
        incarnation=incarnation,
        address="",
        model="",
        kv_format=FormatDigest(b""),
        tokenizer_digest="",
        block_size=0,
        num_blocks=0,
        kv_bytes_per_token=0,
        max_model_len=0,
        max_num_sequences=0,
        vocab_size=0,
        eos_token_ids=(),
        draining=True,
        load=WorkerLoad(0, 0, 0, 0.0, 0),
    )


class _Fields:
    """Typed access to a JSON object; raises CorruptDataError."""

    def __init__(self, value: object) -> None:
        if not isinstance(value, dict):
            raise CorruptDataError("a record is a JSON object")
        self._value: dict[str, object] = value

    def text(self, name: str, default: str | None = None) -> str:
        """`default`: where there is none; workers of the same protocol before it was told have none."""
        value = self._value.get(name, default)
        if not isinstance(value, str):
            raise CorruptDataError(f"{name} is no text")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """`default`: as in `text`."""
        return _count(name, self._value.get(name, default))

    def counts(self, name: str) -> tuple[int, ...]:
        value = self._value.get(name)
        if not isinstance(value, list):
            raise CorruptDataError(f"{name} is no list")
        return tuple(_count(name, item) for item in value)

    def rate(self, name: str) -> float:
        value = self._value.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise CorruptDataError(f"{name} is no rate")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self._value.get(name)
        if not isinstance(value, bool):
            raise CorruptDataError(f"{name} is no flag")
        return value

    def nested(self, name: str) -> _Fields:
        return _Fields(self._value.get(name))

    def objects(self, name: str, most: int) -> tuple[_Fields, ...]:
        value = self._value.get(name)
        if not isinstance(value, list) or len(value) > most:
            raise CorruptDataError(f"{name} is no list of at most {most}")
        return tuple(_Fields(item) for item in value)


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CorruptDataError(f"{name} is no count")
    return value


def _read(values: _Fields) -> WorkerRecord:
    load = values.nested("load")
    return WorkerRecord(
        protocol_version=values.count("protocol_version"),
        worker_id=WorkerId(values.text("worker_id")),
        incarnation=Incarnation(values.text("incarnation")),
        address=values.text("address"),
        model=values.text("model"),
        kv_format=FormatDigest(bytes.fromhex(values.text("kv_format"))),
        tokenizer_digest=values.text("tokenizer_digest"),
        block_size=values.count("block_size"),
        num_blocks=values.count("num_blocks"),
        kv_bytes_per_token=values.count("kv_bytes_per_token"),
        max_model_len=values.count("max_model_len"),
        max_num_sequences=values.count("max_num_sequences"),
        vocab_size=values.count("vocab_size"),
        eos_token_ids=values.counts("eos_token_ids"),
        draining=values.flag("draining"),
        load=WorkerLoad(
            running_requests=load.count("running_requests"),
            waiting_requests=load.count("waiting_requests"),
            queued_prefill_tokens=load.count("queued_prefill_tokens"),
            prefill_tokens_per_s=load.rate("prefill_tokens_per_s"),
            used_blocks=load.count("used_blocks"),
            pressure=_read_pressure(load.nested("pressure")),
            tenants=tuple(_read_use(each) for each in load.objects("tenants", MAX_TENANTS_TOLD)),
            tiers=tuple(_read_tier(each) for each in load.objects("tiers", len(TierKind))),
            audit=_read_audit(load.nested("audit")),
            peers=_read_peers(load.nested("peers")),
            recent_prefill_tokens=load.count("recent_prefill_tokens", 0),
            windows=tuple(_read_window(each) for each in load.objects("windows", MAX_WINDOWS_TOLD)),
        ),
        quota_generation=values.count("quota_generation"),
        kv_bytes_per_sequence=values.count("kv_bytes_per_sequence"),
        kv_pool_bytes=values.count("kv_pool_bytes"),
        adapters=tuple(_read_report(each) for each in values.objects("adapters", MAX_ADAPTERS)),
        clock_unix_s=values.rate("clock_unix_s"),
        metrics_address=_shown(values.text("metrics_address", ""), "the address of metrics"),
    )


def _report_fields(report: AdapterReport) -> dict[str, str]:
    return {
        "name": report.name,
        "digest": report.digest.hex(),
        "kv_format": report.kv_format.hex(),
        "error": report.error,
    }


def _read_report(values: _Fields) -> AdapterReport:
    return AdapterReport(
        name=_shown(values.text("name"), "the name of an adapter"),
        digest=AdapterDigest(bytes.fromhex(values.text("digest"))),
        kv_format=FormatDigest(bytes.fromhex(values.text("kv_format"))),
        error=_shown(values.text("error"), "the error of an adapter"),
    )


def _read_pressure(values: _Fields) -> Pressure:
    return Pressure(*(values.count(each.name, 0) for each in fields(Pressure)))


def _read_audit(values: _Fields) -> AuditCounts:
    return AuditCounts(*(values.count(each.name) for each in fields(AuditCounts)))


def _read_peers(values: _Fields) -> PeerCounts:
    return PeerCounts(*(values.count(each.name) for each in fields(PeerCounts)))


def _read_use(values: _Fields) -> TenantUse:
    tenant, *counts = fields(TenantUse)
    return TenantUse(_tenant(values.text(tenant.name)), *(values.count(each.name) for each in counts))


def _read_window(values: _Fields) -> WindowLoad:
    return WindowLoad(*(values.count(each.name) for each in fields(WindowLoad)))


def _read_tier(values: _Fields) -> TierLoad:
    kind, *counts, seconds = (each.name for each in fields(TierLoad))
    try:
        tier = TierKind(values.text(kind))
    except ValueError as error:
        raise CorruptDataError("a tier is of a kind that this build does not know") from error
    load = TierLoad(tier, *(values.count(name) for name in counts))
    return replace(load, load_block_s=values.rate(seconds))


def _shown(text: str, what: str) -> str:
    """Shown to operators as it is."""
    if not text.isprintable():
        raise CorruptDataError(f"{what} is no plain text")
    return text


def _tenant(text: str) -> TenantId:
    """Shown to operators as it is, so nothing but plain text."""
    if not (0 < len(text) <= MAX_TENANT_CHARS and text.isascii() and text.isprintable()):
        raise CorruptDataError("the id of a tenant is no plain text")
    return TenantId(text)
