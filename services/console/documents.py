"""What the page is told, as JSON. Pure.

Names in it are data: the page puts them into text nodes only.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stemcache.worker.v1 import block_map_pb2 as pb

from services.client.admin_results import Explanation, RequestRecord
from services.console.cluster_view import ClusterView

_STATES = {
    pb.SequenceBlocks.STATE_QUEUED: "queued",
    pb.SequenceBlocks.STATE_LOADING: "loading",
    pb.SequenceBlocks.STATE_PREFILL: "prefill",
    pb.SequenceBlocks.STATE_DECODE: "decode",
}


def document(value: object) -> bytes:
    """JSON that stands in no script and no mark-up."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("utf-8")


def live(view: ClusterView) -> dict[str, Any]:
    """The live view."""
    return asdict(view)


def records(latest: Sequence[RequestRecord]) -> list[dict[str, Any]]:
    """Requests with their times; the terms of their routes come with their explanations."""
    return [_record(each) for each in latest]


def explanation(told: Explanation) -> dict[str, Any]:
    """One request: times, candidates, and why."""
    return {
        "record": _record(told.record),
        "terms": [asdict(each) for each in told.record.terms],
        "worker": told.worker_id,
        "route": told.route,
        "miss": told.miss_reason,
        "reuse": told.reuse,
        "first_missing_token": told.first_missing_token,
    }


def block_map(told: pb.BlockMap) -> dict[str, Any]:
    """Where blocks lie; a byte for each block of the pool as base64."""
    return {
        "incarnation": told.incarnation,
        "block_size": told.block_size,
        "num_blocks": told.num_blocks,
        "states": b64encode(told.states).decode(),
        "owners": b64encode(told.owners).decode(),
        "generations": b64encode(told.generations).decode(),
        "pool_tenants": list(told.pool_tenants),
        "tenants": list(told.tenants),
        "is_complete": told.is_complete,
        "sequences": [_sequence(each) for each in told.sequences],
        "lines": [{"tenant": each.tenant, "table": _table(each.table)} for each in told.lines],
    }


def _sequence(each: pb.SequenceBlocks) -> dict[str, Any]:
    return {
        "request_id": each.request_id,
        "tenant": each.tenant,
        "samples": list(each.samples),
        "state": _STATES.get(each.state, "unknown"),
        "prompt_tokens": each.prompt_tokens,
        "num_tokens": each.num_tokens,
        "num_computed": each.num_computed,
        "num_cached": each.num_cached,
        "table": _table(each.table),
        "copied_from": each.copied_from if each.HasField("copied_from") else None,
    }


def _table(table: pb.BlockTable) -> list[list[int]]:
    """Tier, number, holders, uid, marks of each block."""
    columns = (table.tiers, table.numbers, table.holders, table.uids, table.marks)
    return [list(row) for row in zip(*columns, strict=True)]


def _record(record: RequestRecord) -> dict[str, Any]:
    fields = asdict(record)
    del fields["terms"]
    fields["worker"] = record.terms[0].worker_id if record.terms else ""
    return fields
