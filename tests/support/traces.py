"""Small traces of chats, made up: sessions that grow turn by turn over a common first block."""

from __future__ import annotations

import random

from cache_store.replay.trace import Trace, TraceRequest, ordered
from cache_store.tokens import pack

BLOCK_TOKENS = 10


def chat_trace(rng: random.Random, num_requests: int, num_sessions: int = 12, max_new_blocks: int = 3) -> Trace:
    """Requests of sessions taken at random; some sessions go on for long, some never."""
    blocks: dict[int, list[int]] = {}
    next_symbol = 1
    requests = []
    for number in range(num_requests):
        session = min(int(rng.expovariate(4 / num_sessions)) + number // 8, number + num_sessions)
        prompt = blocks.setdefault(session, [0])
        added = rng.randint(1, max_new_blocks)
        prompt = [*prompt, *range(next_symbol, next_symbol + added)]
        next_symbol += added
        blocks[session] = prompt
        requests.append(TraceRequest(float(number), session, len(prompt) * BLOCK_TOKENS, 5, "", pack(prompt)))
    return ordered(requests, BLOCK_TOKENS)
