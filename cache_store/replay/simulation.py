"""Runs requests of several tenants through the real block pool in the order of their arrival.

Nothing is simulated but time and tensors: pool, prefix tree, quotas, policies and events are those of a worker. A
request takes its blocks, makes them matchable and lets go of them at its arrival. One block of a trace is one block of
the pool. Where a prompt needs more blocks than its tenant can get, its first blocks are cached and the rest is not.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.domain import Domain, Epoch, FormatDigest, TenantId, derive_domain
from cache_store.groups import CacheGeometry, CacheGroup, GroupKind
from cache_store.ledger import PolicyMaker
from cache_store.lower_block import LowerBlock
from cache_store.lower_tiers import LowerTiers
from cache_store.policy import Outcome
from cache_store.quota import DEFAULT_QUOTA, QuotaTable, TenantQuota
from cache_store.replay.trace import Trace, TraceRequest
from cache_store.reuse_curve import CurvePoints
from cache_store.shadow import DEFAULT_RULES, WatchRules
from cache_store.tier_kind import DEVICE_ONLY, TierKind, TierSizes
from cache_store.tiers import Granted, Match, Short
from cache_store.tokens import TOKEN_BYTES, PackedTokens
from cache_store.transfers import TransferResult
from cache_store.usage import CachedTokens, TierLoad

_GEOMETRY = CacheGeometry((CacheGroup(GroupKind.FULL, (0,), bytes_per_block=1, window=0),), block_size=1)


@dataclass(frozen=True, slots=True)
class TraceTenant:
    """A tenant whose requests come from a trace."""

    name: str
    trace: Trace
    quota: TenantQuota = DEFAULT_QUOTA


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a replay is run."""

    num_blocks: int
    policy: PolicyMaker
    session_ends: float = 0.0
    """Share of the sessions whose requests name their session and whose last one says that it is the last."""
    num_windows: int = 10
    """Parts of the time in which hits are counted for themselves."""
    watch_rules: WatchRules = DEFAULT_RULES
    """When a guarantee that brings nothing is lent."""
    sizes: TierSizes = DEVICE_ONLY
    """Tiers below the device."""


@dataclass(slots=True)
class TenantCounts:
    """What became of one tenant's requests."""

    num_requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    host_hit_tokens: int = 0
    """Of them, those whose blocks lay in the host's memory."""
    disk_hit_tokens: int = 0
    num_references: int = 0
    evicted_blocks: int = 0
    dropped_blocks: int = 0
    """Not cached, because the tenant could not get a block for them."""
    window_prompt_tokens: list[int] = field(default_factory=list)
    window_hit_tokens: list[int] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        """Of its prompt tokens."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay gave."""

    num_blocks: int
    tenants: dict[str, TenantCounts]
    seconds: float
    """Processor time that the pool and its tenants took."""
    tiers: tuple[TierLoad, ...]
    """What the tiers below the device did."""
    curves: dict[str, CurvePoints]
    """By tenant; empty ones where the rules follow nothing."""

    @property
    def prompt_tokens(self) -> int:
        """Of all tenants."""
        return sum(counts.prompt_tokens for counts in self.tenants.values())

    @property
    def hit_tokens(self) -> int:
        """Of all tenants."""
        return sum(counts.hit_tokens for counts in self.tenants.values())

    @property
    def hit_rate(self) -> float:
        """Of all prompt tokens."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def num_references(self) -> int:
        """Blocks of all prompts."""
        return sum(counts.num_references for counts in self.tenants.values())


def replay(tenants: Sequence[TraceTenant], options: ReplayOptions, end_s: float | None = None) -> ReplayResult:
    """Runs all requests of all tenants. Windows divide the time up to `end_s`; None: up to the last request."""
    clock = ManualClock(0.0)
    pool = BlockPool(
        _GEOMETRY,
        options.num_blocks,
        clock,
        policy=options.policy,
        watch_rules=options.watch_rules,
        sizes=options.sizes,
    )
    pool.set_quotas(QuotaTable(1, {TenantId(tenant.name): tenant.quota for tenant in tenants}))
    end_s = _end_s(tenants) if end_s is None else end_s
    streams = [_Stream(tenant, pool, options, end_s) for tenant in tenants]
    now_s = 0.0
    started = time.process_time()
    for request, stream in _in_time(tenants, streams):
        clock.advance(request.at_s - now_s)
        now_s = request.at_s
        stream.run(request)
        pool.drain_events()
        if pool.lower is not None:
            _move(pool.lower)
    seconds = time.process_time() - started
    pool.check_invariants()
    evicted = {use.tenant: use.evicted_blocks for use in pool.usage()}
    for stream in streams:
        stream.counts.evicted_blocks = evicted.get(stream.domain.tenant, 0)
    tiers = () if pool.lower is None else pool.lower.loads()
    counts = {stream.name: stream.counts for stream in streams}
    curves = {stream.name: pool.reuse.points(stream.domain.tenant) for stream in streams}
    return ReplayResult(options.num_blocks, counts, seconds, tiers, curves)


class _Stream:
    """Requests of one tenant on their way through the pool."""

    def __init__(self, tenant: TraceTenant, pool: BlockPool, options: ReplayOptions, end_s: float) -> None:
        self.name = tenant.name
        self.domain = _domain(tenant.name)
        self.counts = TenantCounts(
            window_prompt_tokens=[0] * options.num_windows, window_hit_tokens=[0] * options.num_windows
        )
        self._pool = pool
        self._block_tokens = tenant.trace.block_tokens
        self._session_ends = options.session_ends
        self._windows_per_s = options.num_windows / end_s if end_s else 0.0
        self._last_window = options.num_windows - 1

    def run(self, request: TraceRequest) -> None:
        """One request from match to release."""
        pool, domain, blocks = self._pool, self.domain, request.blocks
        num_blocks = len(blocks) // TOKEN_BYTES
        match = pool.match_and_pin(domain, blocks, num_blocks)
        pool.note_reuse(domain, match)
        num_hit = len(match.blocks)
        found = self._hold_below(match, blocks)
        granted = pool.allocate(domain, num_blocks - num_hit)
        if isinstance(granted, Short):
            self.counts.dropped_blocks += num_blocks - num_hit - granted.num_available
            granted = pool.allocate(domain, granted.num_available)
        assert isinstance(granted, Granted), "what is available is granted"
        parent = match.blocks[-1] if match.blocks else None
        stop = num_hit + len(granted.blocks)
        new = PackedTokens(blocks[num_hit * TOKEN_BYTES : stop * TOKEN_BYTES])
        loaded = [block.tier for block in found[: len(granted.blocks)]] if found else ()
        self._let_go_below(found, len(loaded))
        stored = pool.commit(domain, parent, granted.blocks, new)
        hits = _hit_tokens(num_hit, loaded, self._block_tokens, request.prompt_tokens)
        pool.release((*match.blocks, *stored), self._outcome(request, hits.total))
        self._count(request, hits, num_blocks)

    def _hold_below(self, match: Match, blocks: PackedTokens) -> tuple[LowerBlock, ...]:
        """What lower tiers have after the device's blocks, kept until it is loaded."""
        lower = self._pool.lower
        if lower is None:
            return ()
        found = lower.find(self.domain, match.blocks, blocks, len(blocks) // TOKEN_BYTES)
        lower.hold(found)
        return found

    def _let_go_below(self, found: tuple[LowerBlock, ...], num_loaded: int) -> None:
        """Loads take no time here."""
        lower = self._pool.lower
        if lower is not None:
            for block in found[:num_loaded]:
                lower.note_loaded(block, 0.0)
            lower.let_go(found)

    def _outcome(self, request: TraceRequest, hit_tokens: int) -> Outcome:
        part = self._session_ends
        tells_end = part > 0 and _share_of(self.name, request.session) < part
        return Outcome(
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            cached_tokens=hit_tokens,
            stop=request.stop,
            session=b"%d" % request.session if tells_end else b"",
            session_end=request.ends_session and tells_end,
            ttl_s=math.inf,
        )

    def _count(self, request: TraceRequest, hits: CachedTokens, num_blocks: int) -> None:
        counts, hit_tokens = self.counts, hits.total
        counts.num_requests += 1
        counts.prompt_tokens += request.prompt_tokens
        counts.hit_tokens += hit_tokens
        counts.host_hit_tokens += hits.host
        counts.disk_hit_tokens += hits.disk
        counts.num_references += num_blocks
        window = min(self._last_window, int(request.at_s * self._windows_per_s))
        counts.window_prompt_tokens[window] += request.prompt_tokens
        counts.window_hit_tokens[window] += hit_tokens


def _hit_tokens(num_device: int, loaded: Sequence[TierKind], block_tokens: int, prompt_tokens: int) -> CachedTokens:
    """A prompt's tokens by the tier that had their blocks; the last block may be longer than the prompt."""
    device = min(num_device * block_tokens, prompt_tokens)
    if not loaded:
        return CachedTokens(device)
    num_host = sum(tier is TierKind.HOST for tier in loaded)
    host = min(num_host * block_tokens, prompt_tokens - device)
    disk = min((len(loaded) - num_host) * block_tokens, prompt_tokens - device - host)
    return CachedTokens(device, host, disk)


def _move(lower: LowerTiers) -> None:
    """Moves take no time here."""
    moves = lower.drain()
    lower.end_moves(moves, ok=True)
    for spill in moves.spills:
        lower.finish_spill(TransferResult(spill.id, ok=True, seconds=0.0))


def _in_time(tenants: Sequence[TraceTenant], streams: Sequence[_Stream]) -> Iterator[tuple[TraceRequest, _Stream]]:
    if len(tenants) == 1:
        return ((request, streams[0]) for request in tenants[0].trace.requests)
    merged = heapq.merge(*map(_tagged, range(len(tenants)), tenants), key=lambda each: each[:2])
    return ((request, streams[number]) for _, number, request in merged)


def _tagged(number: int, tenant: TraceTenant) -> Iterator[tuple[float, int, TraceRequest]]:
    return ((request.at_s, number, request) for request in tenant.trace.requests)


def _end_s(tenants: Sequence[TraceTenant]) -> float:
    return max((tenant.trace.requests[-1].at_s for tenant in tenants if tenant.trace.requests), default=0.0)


def _domain(name: str) -> Domain:
    secret = hashlib.blake2b(name.encode(), digest_size=32, person=b"sc-replay").digest()
    return derive_domain(secret, TenantId(name), Epoch("replay"), "", FormatDigest(bytes(16)))


def _share_of(name: str, session: int) -> float:
    """A number in [0, 1) that only the session decides: the same sessions tell their end in every run."""
    digest = hashlib.blake2b(f"{name}:{session}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
