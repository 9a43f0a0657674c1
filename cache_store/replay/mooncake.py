"""Reads Mooncake's traces: a JSON object a line with timestamp (ms), input_length, output_length and hash_ids.

A hash id stands for 512 tokens and all that come before them, the last one for fewer; for as many as the first line's
block_size says, where it has one (`stemcache loadtest gen` writes that). The trace names no sessions: a
request goes on with the session whose latest prompt it begins with, but for that prompt's last, partial block; what
branches off earlier is a session of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from cache_store.errors import InvalidRequestError
from cache_store.replay.lines import Line
from cache_store.replay.trace import MAX_SYMBOLS, Symbols, Trace, TraceRequest, ordered
from cache_store.tokens import pack

HASH_TOKENS = 512
COMMON_ROOTS = 1
"""Leading blocks that say nothing of the session: a system prompt that all requests have."""


def read(first: Line, rest: Iterator[Line], block_tokens: int) -> Trace:
    """Reads all lines."""
    own_tokens = hash_tokens(first)
    if block_tokens % own_tokens:
        raise InvalidRequestError(
            "block-tokens", f"the trace has {own_tokens} tokens a block; {block_tokens} is no multiple of that"
        )
    group = block_tokens // own_tokens
    sessions = _Sessions()
    symbols = Symbols()
    requests = [_request(first, sessions, symbols, group)]
    requests += [_request(line, sessions, symbols, group) for line in rest]
    return ordered(requests, block_tokens)


def hash_tokens(first: Line) -> int:
    """Tokens of each hash id."""
    fields = first.json_object()
    if "block_size" not in fields:
        return HASH_TOKENS
    number = int(first.number_in(fields, "block_size"))
    if number < 1:
        raise first.error(f"block_size is {number}; it is at least 1")
    return number


def _request(line: Line, sessions: _Sessions, symbols: Symbols, group: int) -> TraceRequest:
    fields = line.json_object()
    ids = line.ids_in(fields, "hash_ids")
    if ids and not 0 <= min(ids) <= max(ids) < MAX_SYMBOLS:
        raise line.error(f"hash_ids must lie within 0 and {MAX_SYMBOLS - 1}")
    blocks = ids if group == 1 else symbols.chain(-1, (ids[at : at + group] for at in range(0, len(ids), group)))
    return TraceRequest(
        at_s=line.number_in(fields, "timestamp") / 1000,
        session=sessions.of(ids),
        prompt_tokens=int(line.number_in(fields, "input_length")),
        output_tokens=int(line.number_in(fields, "output_length")),
        stop="",
        blocks=pack(blocks),
    )


class _Sessions:
    """The last full block of each session's latest prompt."""

    def __init__(self) -> None:
        self._latest: dict[int, int] = {}
        self._next = 0

    def of(self, ids: list[int]) -> int:
        """Session of a request with these blocks."""
        own = ids[COMMON_ROOTS:]
        goes_on = next((each for each in reversed(own) if each in self._latest), None)
        if goes_on is None:
            session, self._next = self._next, self._next + 1
        else:
            session = self._latest.pop(goes_on)
        if own:
            self._latest[own[-2] if len(own) > 1 else own[-1]] = session
        return session
