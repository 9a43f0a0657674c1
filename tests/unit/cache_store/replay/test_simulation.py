"""Replays on small traces against a naive simulator of one LRU list per tenant."""

from __future__ import annotations

import random
from types import MappingProxyType

import pytest

from cache_store.policies.lru import Lru
from cache_store.quota import DEFAULT_QUOTA, TenantQuota, TierShare
from cache_store.replay.isolation import isolation
from cache_store.replay.scanner import scanner_beside
from cache_store.replay.simulation import ReplayOptions, TraceTenant, replay
from cache_store.replay.trace import Trace
from cache_store.tier_kind import TierKind
from tests.support.traces import chat_trace


def naive_lru_hits(trace: Trace, num_blocks: int) -> int:
    """Hit blocks of a list, oldest first, of which the tail of a request is older than its head."""
    cached: list[tuple[int, ...]] = []
    hits = 0
    for request in trace.requests:
        ids = tuple(memoryview(request.blocks).cast("I"))
        prefixes = [ids[: end + 1] for end in range(len(ids))]
        num_hit = 0
        while num_hit < len(prefixes) and prefixes[num_hit] in cached:
            num_hit += 1
        hits += num_hit
        held = prefixes[:num_blocks]
        cached = [each for each in cached if each not in held]
        cached = cached[max(0, len(cached) + len(held) - num_blocks) :] + held[::-1]
    return hits


def share(minimum: float, maximum: float = 1.0) -> TenantQuota:
    return TenantQuota(MappingProxyType({TierKind.DEVICE: TierShare(minimum, maximum)}))


@pytest.mark.parametrize("seed", range(20))
def test_lru_hits_what_a_plain_list_hits(seed: int) -> None:
    rng = random.Random(seed)
    trace = chat_trace(rng, num_requests=80)
    num_blocks = rng.randint(1, 30)
    result = replay([TraceTenant("chat", trace)], ReplayOptions(num_blocks, Lru))
    assert result.hit_tokens == naive_lru_hits(trace, num_blocks) * trace.block_tokens
    assert result.num_references == trace.num_references
    assert result.prompt_tokens == trace.num_tokens


def test_windows_add_up_to_the_whole() -> None:
    trace = chat_trace(random.Random(1), num_requests=80)
    counts = replay([TraceTenant("chat", trace)], ReplayOptions(20, Lru, num_windows=7)).tenants["chat"]
    assert len(counts.window_hit_tokens) == 7
    assert sum(counts.window_hit_tokens) == counts.hit_tokens > 0
    assert sum(counts.window_prompt_tokens) == counts.prompt_tokens


def test_equal_prompts_of_two_tenants_share_nothing() -> None:
    trace = chat_trace(random.Random(2), num_requests=40)
    alone = replay([TraceTenant("a", trace)], ReplayOptions(10_000, Lru))
    both = replay([TraceTenant("a", trace), TraceTenant("b", trace)], ReplayOptions(10_000, Lru))
    assert both.tenants["a"].hit_tokens == both.tenants["b"].hit_tokens == alone.hit_tokens > 0


def test_a_guarantee_keeps_a_scanner_out_and_without_one_it_comes_in() -> None:
    trace = chat_trace(random.Random(3), num_requests=300)
    scanner = scanner_beside(trace, 16)
    ratios = []
    for quota in (share(0.5), DEFAULT_QUOTA):
        tenants = [TraceTenant("chat", trace, quota), TraceTenant("scanner", scanner, TenantQuota(weight=100.0))]
        options = ReplayOptions(60, Lru, num_windows=4)
        result = replay(tenants, options)
        alone = replay([TraceTenant("chat", trace)], ReplayOptions(30, Lru, num_windows=4))
        ratios.append(result.tenants["chat"].hit_tokens / alone.hit_tokens)
        if quota is not DEFAULT_QUOTA:
            (ratio,) = isolation(tenants, result, options)
            assert (ratio.tenant, ratio.overall) == ("chat", ratios[0])
            assert 1.0 <= ratio.worst <= ratio.overall
        assert result.tenants["scanner"].hit_tokens == 0
    assert ratios[0] >= 1.0 > ratios[1]


def test_announced_ends_help_and_the_same_sessions_tell_them_each_time() -> None:
    trace = chat_trace(random.Random(4), num_requests=400)
    hits = [
        replay([TraceTenant("chat", trace)], ReplayOptions(40, Lru, session_ends=part)).hit_tokens
        for part in (0.0, 0.8, 0.8, 1.0)
    ]
    assert hits[0] < hits[1] == hits[2] <= hits[3]


def test_a_prompt_larger_than_the_pool_is_cached_in_part() -> None:
    trace = chat_trace(random.Random(5), num_requests=30)
    counts = replay([TraceTenant("chat", trace)], ReplayOptions(2, Lru)).tenants["chat"]
    assert counts.dropped_blocks > 0
    assert counts.num_requests == 30
