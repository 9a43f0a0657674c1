"""The optimum against brute force over everything that could be kept, on tiny traces."""

from __future__ import annotations

import random
from functools import cache
from itertools import combinations

import pytest

from cache_store.policies.lru import Lru
from cache_store.replay.oracle import optimal_hit_tokens
from cache_store.replay.simulation import ReplayOptions, TraceTenant, replay
from cache_store.replay.trace import Trace
from tests.support.traces import chat_trace

Prefix = tuple[int, ...]


def best_by_trying_everything(trace: Trace, num_blocks: int) -> int:
    """Most hit blocks: every set of blocks that may be kept is tried after every request."""
    prompts = [tuple(memoryview(request.blocks).cast("I")) for request in trace.requests]

    @cache
    def best(number: int, kept: frozenset[Prefix]) -> int:
        if number == len(prompts):
            return 0
        ids = prompts[number]
        prefixes = [ids[: end + 1] for end in range(len(ids))]
        num_hit = 0
        while num_hit < len(prefixes) and prefixes[num_hit] in kept:
            num_hit += 1
        held = frozenset(prefixes[:num_blocks])
        others = kept - held
        room = num_blocks - len(held)
        choices = {
            frozenset(chosen) | held
            for size in range(min(room, len(others)) + 1)
            for chosen in combinations(sorted(others), size)
            if _is_closed(frozenset(chosen) | held)
        }
        return num_hit + max(best(number + 1, choice) for choice in choices)

    return best(0, frozenset())


def _is_closed(kept: frozenset[Prefix]) -> bool:
    return all(len(prefix) == 1 or prefix[:-1] in kept for prefix in kept)


@pytest.mark.parametrize("seed", range(40))
def test_it_is_what_trying_everything_finds(seed: int) -> None:
    rng = random.Random(seed)
    trace = chat_trace(rng, num_requests=9, num_sessions=3, max_new_blocks=2)
    num_blocks = rng.randint(1, 6)
    found = optimal_hit_tokens([TraceTenant("chat", trace)], num_blocks)["chat"]
    assert found == best_by_trying_everything(trace, num_blocks) * trace.block_tokens


@pytest.mark.parametrize("seed", range(10))
def test_no_policy_exceeds_it(seed: int) -> None:
    rng = random.Random(seed)
    tenants = [TraceTenant(name, chat_trace(rng, num_requests=100)) for name in ("a", "b")]
    num_blocks = rng.randint(5, 60)
    optimum = sum(optimal_hit_tokens(tenants, num_blocks).values())
    assert replay(tenants, ReplayOptions(num_blocks, Lru)).hit_tokens <= optimum
