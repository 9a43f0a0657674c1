"""Writes a workload as a trace: Mooncake's JSONL with a block size of its own, as `run` and `replay` read it back.

A hash id stands for a block's tokens and all before them. Answers are not known ahead: a conversation's next turn
begins with all before, and blocks that no other prompt has in place of the answer. Keeps the ids it has given out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import xxhash

from cache_store.tokens import TOKEN_BYTES, count
from services.loadtest.sessions import Session
from services.loadtest.token_source import TokenSource


def trace_lines(
    timed: Iterable[tuple[float, Session]], answers: TokenSource, block_tokens: int
) -> Iterator[tuple[float, str]]:
    """Time and line of each request, by session; `answers` stand in for what a model would say."""
    ids = _Ids(block_tokens)
    for at_s, session in timed:
        said = b""
        for number, turn in enumerate(session.turns):
            at_s += turn.think_s if number else 0.0
            said += b"".join(turn.parts)
            line = {
                "timestamp": round(at_s * 1e3, 3),
                "input_length": count(said),
                "output_length": turn.max_tokens,
                "hash_ids": ids.of(said),
                "block_size": block_tokens,
            }
            yield at_s, json.dumps(line, separators=(",", ":"))
            said += answers.fresh(turn.max_tokens)


class _Ids:
    """Numbers chains of blocks in the order in which they come."""

    def __init__(self, block_tokens: int) -> None:
        self._block_bytes = block_tokens * TOKEN_BYTES
        self._known: dict[bytes, int] = {}

    def of(self, tokens: bytes) -> list[int]:
        """One for each block, the last, partial one included."""
        chain, found = b"", []
        for start in range(0, len(tokens), self._block_bytes):
            chain = xxhash.xxh3_128_digest(chain + tokens[start : start + self._block_bytes])
            found.append(self._known.setdefault(chain, len(self._known)))
        return found
