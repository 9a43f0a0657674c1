"""Workers in simulated time: the product's block pool and eviction, and prefill at a given speed.

A worker takes one prompt after the other in the order in which they came, as long as the token-digest runner would:
a time per step and one per token that is not cached. One symbol of a trace stands for a block of it. What a worker
tells of itself is in tokens, as a real one's is.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

from cache_store.block_pool import BlockPool
from cache_store.clock import Clock
from cache_store.domain import Domain
from cache_store.groups import CacheGeometry, CacheGroup, GroupKind
from cache_store.index import Incarnation
from cache_store.index_stream import StreamedChange
from cache_store.policies.choice import PolicyKind, policy_maker
from cache_store.policy import Outcome
from cache_store.registry import PROTOCOL_VERSION, WorkerId, WorkerLoad, WorkerRecord
from cache_store.replay.trace import TraceRequest
from cache_store.tiers import Granted
from cache_store.tokens import TOKEN_BYTES, PackedTokens
from worker.digest_runner import digest_model
from worker.rate import RateMeter

MODEL = "token-digest"
STEP_S = 0.005
"""Of every prompt, beside its tokens' time."""
MAX_SEQUENCES = 64
_GEOMETRY = CacheGeometry((CacheGroup(GroupKind.FULL, (0,), bytes_per_block=1, window=0),), block_size=1)
_FORMAT = digest_model().kv_format.digest()


class SimClock:
    """The cluster's time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True)
class WorkerSize:
    """What a worker is."""

    num_blocks: int
    block_tokens: int
    tokens_per_s: float
    policy: PolicyKind = PolicyKind.CLASS
    """The product's default."""
    fetch_speed: float = 0.0
    """Blocks of another worker come so many times as fast as they are computed; 0: they do not come."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """One prompt that was computed."""

    number: int
    """Of the request."""
    seconds: float
    hit_tokens: int
    """Not computed, wherever they came from."""
    changes: tuple[StreamedChange, ...]


@dataclass(frozen=True, slots=True)
class _Waiting:
    number: int
    domain: Domain
    request: TraceRequest
    uncached_tokens: int
    peer: SimWorker | None


class SimWorker:
    """One worker; whoever drives it lets the time of a prompt pass before the next."""

    def __init__(self, number: int, size: WorkerSize, clock: Clock) -> None:
        self.incarnation = Incarnation(f"{number:032x}")
        self.is_busy = False
        self._size = size
        self._pool = BlockPool(_GEOMETRY, size.num_blocks, clock, policy=policy_maker(size.policy))
        self._rate = RateMeter(clock)
        self._queue: deque[_Waiting] = deque()
        self._num_queued = 0
        """Tokens that wait and are not cached, as far as that was known when they came."""
        self._record = WorkerRecord(
            protocol_version=PROTOCOL_VERSION,
            worker_id=WorkerId(f"worker-{number}"),
            incarnation=self.incarnation,
            address="",
            model=MODEL,
            kv_format=_FORMAT,
            tokenizer_digest="",
            block_size=size.block_tokens,
            num_blocks=size.num_blocks,
            kv_bytes_per_token=1,
            max_model_len=size.num_blocks * size.block_tokens,
            max_num_sequences=MAX_SEQUENCES,
            vocab_size=1 << 32,
            eos_token_ids=(),
            draining=False,
            load=WorkerLoad(0, 0, 0, size.tokens_per_s, 0),
        )

    @property
    def has_work(self) -> bool:
        """Whether prompts wait."""
        return bool(self._queue)

    def submit(self, number: int, domain: Domain, request: TraceRequest, peer: SimWorker | None = None) -> None:
        """Takes a request of the trace; `peer` may have more of it."""
        cached = self._pool.cached_tokens(domain, request.blocks, request.num_blocks - 1).total
        uncached = request.prompt_tokens - cached * self._size.block_tokens
        self._queue.append(_Waiting(number, domain, request, uncached, peer))
        self._num_queued += uncached

    def prefill(self) -> Prefill:
        """The next prompt, from now on. At least its last block is computed."""
        waiting = self._queue.popleft()
        self._num_queued -= waiting.uncached_tokens
        domain, request = waiting.domain, waiting.request
        pool, blocks, num_blocks = self._pool, request.blocks, request.num_blocks
        match = pool.match_and_pin(domain, blocks, num_blocks - 1)
        pool.note_reuse(domain, match)
        num_hit = len(match.blocks)
        num_fetched = self._num_fetched(waiting, num_hit)
        granted = pool.allocate(domain, num_blocks - num_hit)
        assert isinstance(granted, Granted), "nothing else is held, and a pool holds the longest prompt"
        new = PackedTokens(blocks[num_hit * TOKEN_BYTES :])
        stored = pool.commit(domain, match.blocks[-1] if match.blocks else None, granted.blocks, new)
        hit_tokens = num_hit * self._size.block_tokens
        outcome = Outcome(
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            cached_tokens=hit_tokens,
            stop=request.stop,
            session=b"",
            session_end=False,
            ttl_s=math.inf,
        )
        pool.release((*match.blocks, *stored), outcome)
        changes = tuple(StreamedChange(e.domain_tag, e.change, e.digests) for e in pool.drain_events())
        fetched_tokens = num_fetched * self._size.block_tokens
        computed_tokens = request.prompt_tokens - hit_tokens - fetched_tokens
        seconds = STEP_S + computed_tokens / self._size.tokens_per_s
        if fetched_tokens:
            seconds += fetched_tokens / (self._size.fetch_speed * self._size.tokens_per_s)
        self._rate.add(computed_tokens, seconds)
        return Prefill(waiting.number, seconds, hit_tokens + fetched_tokens, changes)

    def _num_fetched(self, waiting: _Waiting, num_hit: int) -> int:
        """Blocks that the peer has beyond those that are here."""
        if waiting.peer is None or not self._size.fetch_speed:
            return 0
        request = waiting.request
        there = waiting.peer._pool.cached_tokens(waiting.domain, request.blocks, request.num_blocks - 1).total
        return max(0, there - num_hit)

    def report(self) -> WorkerRecord:
        """What it would renew its lease with now."""
        load = replace(
            self._record.load,
            running_requests=int(self.is_busy),
            waiting_requests=len(self._queue),
            queued_prefill_tokens=self._num_queued,
            recent_prefill_tokens=self._rate.recent_tokens,
        )
        return replace(self._record, load=load)

    def check_invariants(self) -> None:
        """Raises AssertionError where its books do not agree."""
        self._pool.check_invariants()
