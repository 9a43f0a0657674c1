"""What the eviction policies reach on public traces, by the real pool. In per cent of all prompt tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cache_store.policies.class_aware import ClassAware
from cache_store.policies.lru import Lru
from cache_store.replay.oracle import optimal_hit_tokens
from cache_store.replay.simulation import ReplayOptions, TraceTenant, replay
from cache_store.replay.trace import Trace
from cache_store.tokens import PackedTokens, pack, unpack
from tests.support.public_traces import AZURE_CODE, CLAUDE_CODE, CONVERSATION, public_trace

LRU_CONVERSATION = {1: 5.3, 2: 8.1, 5: 20.0, 10: 28.4, 20: 35.2, 50: 37.0}
OPTIMUM_CONVERSATION = {1: 24.5, 2: 31.8, 5: 37.4}
LEAST_CONVERSATION = {1: 8.2, 2: 12.3, 5: 20.8, 10: 29.0, 20: 35.0, 50: 36.8}
LEAST_CLAUDE_CODE = {1: 24.5, 2: 46.0, 5: 79.5, 10: 92.1, 20: 94.9}
CLAUDE_CODE_REFERENCES = 8_703_065
EVERYDAY = (5,)
"""Other capacities are for the night."""


def capacities(figures: dict[int, float]) -> list[object]:
    return [pytest.param(each, marks=[] if each in EVERYDAY else [pytest.mark.nightly]) for each in figures]


def num_blocks(trace: Trace, percent: float) -> int:
    """Of the trace's unique blocks."""
    return int(trace.num_unique_blocks() * percent / 100)


def elsewhere(blocks: PackedTokens) -> PackedTokens:
    """Blocks that no conversation has."""
    return pack(symbol + (1 << 31) for symbol in unpack(blocks))


def hit_rate(trace: Trace, options: ReplayOptions) -> float:
    return 100 * replay([TraceTenant("tenant", trace)], options).hit_rate


@pytest.mark.parametrize("percent", capacities(LRU_CONVERSATION))
def test_lru_hits_of_conversations_what_is_known_of_it(percent: int) -> None:
    trace = public_trace(CONVERSATION)
    found = hit_rate(trace, ReplayOptions(num_blocks(trace, percent), Lru))
    assert found == pytest.approx(LRU_CONVERSATION[percent], abs=0.06)


@pytest.mark.parametrize("percent", capacities(OPTIMUM_CONVERSATION))
def test_the_optimum_of_conversations_is_what_is_known_of_it(percent: int) -> None:
    trace = public_trace(CONVERSATION)
    hits = optimal_hit_tokens([TraceTenant("tenant", trace)], num_blocks(trace, percent))["tenant"]
    assert 100 * hits / trace.num_tokens == pytest.approx(OPTIMUM_CONVERSATION[percent], abs=0.06)


@pytest.mark.parametrize("percent", capacities(LEAST_CONVERSATION))
def test_the_class_aware_policy_on_conversations(percent: int) -> None:
    trace = public_trace(CONVERSATION)
    assert hit_rate(trace, ReplayOptions(num_blocks(trace, percent), ClassAware)) >= LEAST_CONVERSATION[percent]


@pytest.mark.nightly
def test_announced_ends_of_sessions_on_conversations() -> None:
    trace = public_trace(CONVERSATION)
    assert hit_rate(trace, ReplayOptions(num_blocks(trace, 5), ClassAware, session_ends=0.8)) >= 31.5


@pytest.mark.nightly
@pytest.mark.parametrize("percent", [2, 10])
@pytest.mark.parametrize("half", [0, 1])
def test_the_class_aware_policy_on_either_half_of_the_conversations(half: int, percent: int) -> None:
    """Other sessions at another rate than those that its levels were chosen on."""
    trace = public_trace(CONVERSATION).select(lambda session: session % 2 == half)
    lru, learnt = (hit_rate(trace, ReplayOptions(num_blocks(trace, percent), policy)) for policy in (Lru, ClassAware))
    assert learnt >= lru + 0.5


@pytest.mark.nightly
def test_traffic_that_never_repeats_does_not_spoil_what_it_learns() -> None:
    """One tenant's own prompts that never come again, between its conversations."""
    chats, code = public_trace(CONVERSATION), public_trace(AZURE_CODE)
    first = 1 << 20
    shifted = (replace(each, session=each.session + first, blocks=elsewhere(each.blocks)) for each in code.requests)
    requests = sorted((*chats.requests, *shifted), key=lambda each: each.at_s)
    trace = Trace(tuple(requests), chats.block_tokens)
    lru, learnt = (hit_rate(trace, ReplayOptions(num_blocks(chats, 5), policy)) for policy in (Lru, ClassAware))
    assert learnt >= lru + 1


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("percent", LEAST_CLAUDE_CODE)
def test_the_class_aware_policy_on_agents(percent: int) -> None:
    trace = public_trace(CLAUDE_CODE)
    assert trace.num_references == CLAUDE_CODE_REFERENCES, "sessions start and are cut as they were for these figures"
    assert hit_rate(trace, ReplayOptions(num_blocks(trace, percent), ClassAware)) >= LEAST_CLAUDE_CODE[percent]
