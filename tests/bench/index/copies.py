"""A router's copy of the index by itself: memory, updates, the end of a worker, the purge of a tenant, hashing."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cache_store.digest import chain
from cache_store.domain import Domain, Epoch, FormatDigest, TenantId, derive_domain
from cache_store.events import BlockChange
from cache_store.index_replica import IndexReplica, each
from cache_store.index_stream import StreamedChange
from cache_store.tokens import pack
from tests.bench.index.changes import Tenants
from tests.bench.index.stored import TAG, digests, incarnations

_UPDATE_BLOCKS = 512
_BLOCK_TOKENS = 16
_HASHED_TOKENS = 8_192


@dataclass(frozen=True, slots=True)
class CopyFigures:
    """What was measured."""

    bytes_per_block: float
    stored_us: float
    """Per block, in batches."""
    removed_us: float
    drop_s: float
    """A worker with a part of every domain."""
    purge_s: float
    """A tenant with all its domains on all workers."""
    num_gone: int
    """Blocks that both have taken out."""


def measure(tenants: Tenants, num_updates: int) -> CopyFigures:
    """Fills a copy with all tenants' blocks, and changes it."""
    workers, tags = incarnations(tenants.num_workers), tenants.all_tags()
    gc.collect()
    before = _resident_bytes()
    replica = IndexReplica(max_digests=2 * tenants.num_blocks + 1_000_000, max_domains=2 * len(tags) + 1)
    for incarnation in workers:
        for tag in tags:
            load = replica.begin_load(tag, incarnation)
            assert load is not None
            replica.finish_load(load, each(digests(f"{incarnation}{tag.hex()}", tenants.per_set)))
    per_block = (_resident_bytes() - before) / replica.num_digests
    stored_us, removed_us = _update(replica, num_updates)
    num_before = replica.num_digests
    dead, living = workers[-1], workers[:-1]
    drop_s = _timed(lambda: replica.forget(dead))
    gone = tenants.tags(tenants.num_tenants // 2)
    cleared = [StreamedChange(tag, BlockChange.CLEARED, b"") for tag in gone]
    purge_s = _timed(lambda: [replica.apply(name, cleared) for name in living])
    replica.check_invariants()
    return CopyFigures(per_block, stored_us, removed_us, drop_s, purge_s, num_before - replica.num_digests)


def hashing_us(num_rounds: int) -> float:
    """Median of the digests of 1,000 tokens, in blocks of 16."""
    domain = _domain()
    tokens = pack(range(_HASHED_TOKENS))
    times = [_timed(lambda: chain(domain, tokens, _BLOCK_TOKENS)) for _ in range(num_rounds)]
    return statistics.median(times) * 1e6 / _HASHED_TOKENS * 1_000


def _update(replica: IndexReplica, num_updates: int) -> tuple[float, float]:
    """Microseconds per block."""
    worker = incarnations(1)[0]
    load = replica.begin_load(TAG, worker)
    assert load is not None
    replica.finish_load(load, ())
    found = []
    for change in (BlockChange.STORED, BlockChange.REMOVED):
        changes = [StreamedChange(TAG, change, digests(f"update {at}", _UPDATE_BLOCKS)) for at in range(num_updates)]
        seconds = _timed(lambda changes=changes: [replica.apply(worker, [each]) for each in changes])
        found.append(seconds * 1e6 / (num_updates * _UPDATE_BLOCKS))
    return found[0], found[1]


def _timed(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _domain() -> Domain:
    return derive_domain(bytes(32), TenantId("bench"), Epoch("bench"), "", FormatDigest(bytes(16)))
