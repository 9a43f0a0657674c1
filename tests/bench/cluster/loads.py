"""What is asked of the cluster: two public traces, and a document that is hot beyond one worker."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

from cache_store.policies.choice import PolicyKind, policy_maker
from cache_store.replay.simulation import ReplayOptions, TraceTenant, replay
from cache_store.replay.trace import Trace, TraceRequest, ordered
from cache_store.replay.trace_files import ReadOptions, read_trace
from cache_store.tokens import pack

BLOCK_TOKENS = 512
DOCUMENT_BLOCKS = 64
HOT_PER_S, OTHERS_PER_S, OTHER_BLOCKS = 25.0, 5.0, 8
HOT_S = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """A trace and what is to be reached on it."""

    name: str
    trace: Trace
    max_imbalance: float
    num_blocks: int
    """Of the whole cluster."""


AGENT_BLOCK_TOKENS = 2_048
"""Larger blocks, since agents' prompts are long: 57 of them on average."""

AGENT_REQUESTS = 15_000
"""The first of them: the rest takes too long for a benchmark, and is of the same kind."""


def public_loads(folder: Path, max_requests: int | None) -> list[Load]:
    """The traces of the folder."""
    chat = read_trace(folder / "mooncake_conversation_trace.jsonl.zst", ReadOptions(BLOCK_TOKENS))
    agents = read_trace(folder / "kv_cache_tester_claude_code.jsonl.zst", ReadOptions(AGENT_BLOCK_TOKENS))
    return [
        Load("conversation", _first(chat, max_requests), 1.05, _share_of(chat, 0.2)),
        Load("agents", _first(agents, max_requests or AGENT_REQUESTS), 1.15, _share_of(agents, 0.2)),
    ]


def hot_load(seconds: float = HOT_S, seed: int = 0) -> Load:
    """Questions about one document, and other prompts, each of which comes once."""
    rng = random.Random(seed)
    document = range(DOCUMENT_BLOCKS)
    requests, symbol, at_s = [], DOCUMENT_BLOCKS, 0.0
    while at_s < seconds:
        is_hot = rng.random() < HOT_PER_S / (HOT_PER_S + OTHERS_PER_S)
        num_own = rng.randint(1, 2) if is_hot else OTHER_BLOCKS
        blocks = [*(document if is_hot else ()), *range(symbol, symbol + num_own)]
        symbol += num_own
        requests.append(TraceRequest(at_s, len(requests), len(blocks) * BLOCK_TOKENS, 1, "", pack(blocks)))
        at_s += rng.expovariate(HOT_PER_S + OTHERS_PER_S)
    trace = ordered(requests, BLOCK_TOKENS)
    return Load("hot document", trace, 1.15, _share_of(trace, 0.5))


def pooled_hit_share(load: Load, num_blocks: int) -> float:
    """Hits of one pool with these blocks, to choose workers' speed by; time and queues aside."""
    tenant = TraceTenant("bench", load.trace)
    return replay([tenant], ReplayOptions(num_blocks, policy_maker(PolicyKind.CLASS))).hit_rate


def _share_of(trace: Trace, share: float) -> int:
    """So many of its different blocks."""
    return int(trace.num_unique_blocks() * share)


def _first(trace: Trace, max_requests: int | None) -> Trace:
    return trace if max_requests is None else replace(trace, requests=trace.requests[:max_requests])
