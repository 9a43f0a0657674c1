"""What is left of a tenant's guarantee beside a scanner, on public traces.

A ratio of 1 is a wall: as many hits as alone with the guarantee, in the worst of ten windows of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from cache_store.policies.choice import PolicyKind, policy_maker
from cache_store.quota import TierShare
from cache_store.replay.isolation import isolation
from cache_store.replay.scanner import scanner_beside
from cache_store.replay.simulation import ReplayOptions, ReplayResult, TraceTenant, replay
from cache_store.replay.trace import Trace
from cache_store.shadow import WatchRules
from tests.support.public_traces import CLAUDE_CODE, CONVERSATION, public_trace
from tests.support.quotas import make_quota

QUARTER = make_quota(TierShare(0.25))
NEVER = WatchRules(useless_density=0.0)


@dataclass(frozen=True, slots=True)
class Beside:
    """Tenants in one pool, a scanner among them."""

    result: ReplayResult
    worst_ratio: float

    @property
    def hit_tokens(self) -> int:
        """Of all but the scanner, which hits nothing."""
        return self.result.hit_tokens


def run(traces: Mapping[str, Trace], rate: float, options: ReplayOptions) -> Beside:
    """All with a guaranteed quarter, and a scanner at `rate` times the first one's rate."""
    tenants = [TraceTenant(name, trace, QUARTER) for name, trace in traces.items()]
    tenants.append(TraceTenant("scanner", scanner_beside(tenants[0].trace, rate), QUARTER))
    result = replay(tenants, options)
    ratios = isolation(tenants, result, options)
    return Beside(result, min((each.worst for each in ratios), default=0.0))


def options_for(traces: Mapping[str, Trace], share: float, policy: PolicyKind, rules: WatchRules) -> ReplayOptions:
    """A pool of that share of the unique blocks."""
    num_unique = sum(trace.num_unique_blocks() for trace in traces.values())
    return ReplayOptions(int(num_unique * share), policy_maker(policy), watch_rules=rules)


def thirds() -> dict[str, Trace]:
    """The conversation's sessions as three tenants, their first minutes."""
    trace = public_trace(CONVERSATION)
    early = replace(trace, requests=tuple(each for each in trace.requests if each.at_s < 400))
    return {f"third-{part}": early.select(lambda session, part=part: session % 3 == part) for part in range(3)}


def mix() -> dict[str, Trace]:
    """The conversation, and two fifths of the agents' sessions in the same time."""
    chat, agents = public_trace(CONVERSATION), public_trace(CLAUDE_CODE)
    traces = {"chat": chat}
    for part in range(2):
        fifth = agents.select(lambda session, part=part: session % 5 == part)
        traces[f"agents-{part}"] = fifth.faster(fifth.requests[-1].at_s / chat.duration_s)
    return traces


def test_a_scanner_takes_nothing_of_what_others_are_guaranteed() -> None:
    traces = thirds()
    assert run(traces, 16, options_for(traces, 0.1, PolicyKind.LRU, NEVER)).worst_ratio == 1.0


def test_what_a_scanner_has_no_use_for_serves_the_others() -> None:
    traces = thirds()
    lent, kept = (run(traces, 16, options_for(traces, 0.1, PolicyKind.LRU, rules)) for rules in (WatchRules(), NEVER))
    assert lent.worst_ratio >= 0.98
    assert lent.hit_tokens > kept.hit_tokens


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("share", [0.05, 0.1])
def test_lru_beside_a_scanner_at_sixteen_times_the_rate(share: float) -> None:
    traces = mix()
    options = options_for(traces, share, PolicyKind.LRU, NEVER)
    slow, fast = run(traces, 1, options), run(traces, 16, options)
    assert fast.worst_ratio == 1.0
    assert_not_harmed(slow, fast, traces)


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("share", [0.05, 0.1])
def test_the_class_aware_policy_beside_a_scanner_where_no_guarantee_is_lent(share: float) -> None:
    traces = mix()
    options = options_for(traces, share, PolicyKind.CLASS, NEVER)
    slow, fast = run(traces, 1, options), run(traces, 16, options)
    assert fast.worst_ratio >= 0.99
    assert_not_harmed(slow, fast, traces)


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("policy", list(PolicyKind))
@pytest.mark.parametrize("share", [0.05, 0.1])
def test_useless_guarantees_are_lent_beside_a_scanner_at_sixteen_times_the_rate(
    share: float, policy: PolicyKind
) -> None:
    traces = mix()
    options = options_for(traces, share, policy, WatchRules())
    slow, fast = run(traces, 1, options), run(traces, 16, options)
    assert fast.worst_ratio >= 0.98
    assert_not_harmed(slow, fast, traces)
    tenants = [TraceTenant(name, trace) for name, trace in traces.items()]
    alone = replay(tenants, replace(options, policy=policy_maker(PolicyKind.LRU)))
    assert fast.hit_tokens >= 0.96 * alone.hit_tokens


def assert_not_harmed(slow: Beside, fast: Beside, traces: Mapping[str, Trace]) -> None:
    """A scanner that grows costs nobody more than half a point. It is found useless sooner, which may bring some."""
    for name in traces:
        before, after = (each.result.tenants[name].hit_rate for each in (slow, fast))
        assert after >= before - 0.005
