"""What a trace is once it is read: requests in order of time, each with its prompt as blocks.

Knows no file format and no pool. A block of a trace is one symbol of four bytes, so that a pool of block size 1 holds a
block per symbol and nothing but the work of the pool is done in a replay. Values; nobody owns them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cache_store.errors import InvalidRequestError
from cache_store.tokens import PackedTokens, count, pack

MAX_SYMBOLS = 1 << 32
"""Symbols that four bytes tell apart."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request."""

    at_s: float
    """Arrival, seconds from the start of the trace."""
    session: int
    """Conversation that it belongs to; sessions are numbered within a trace."""
    prompt_tokens: int
    output_tokens: int
    stop: str
    """Why the answer ended, in the trace's own words; empty where it does not say."""
    blocks: PackedTokens
    """One symbol per block of the prompt, the last, partial one included where the trace has it."""
    ends_session: bool = False
    """The trace has no later request of the session."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the prompt."""
        return count(self.blocks)


@dataclass(frozen=True, slots=True)
class Trace:
    """All requests in order of arrival."""

    requests: tuple[TraceRequest, ...]
    block_tokens: int
    """Tokens per block."""

    @property
    def num_references(self) -> int:
        """Blocks of all prompts, repeated ones each time."""
        return sum(request.num_blocks for request in self.requests)

    @property
    def num_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].at_s - self.requests[0].at_s if self.requests else 0.0

    def num_unique_blocks(self) -> int:
        """Different blocks, told apart by their symbols."""
        unique: set[int] = set()
        for request in self.requests:
            symbols = array("I")
            symbols.frombytes(request.blocks)
            unique.update(symbols)
        return len(unique)

    def select(self, wanted: Callable[[int], object]) -> Trace:
        """Requests of the sessions that are `wanted`."""
        return replace(self, requests=tuple(each for each in self.requests if wanted(each.session)))

    def faster(self, factor: float) -> Trace:
        """The same requests at `factor` times the rate."""
        if not factor > 0:
            raise InvalidRequestError("rate", f"a rate factor of {factor:g} leaves no trace; take one above 0")
        return replace(self, requests=tuple(replace(each, at_s=each.at_s / factor) for each in self.requests))


def ordered(requests: Iterable[TraceRequest], block_tokens: int) -> Trace:
    """A trace of requests in any order; marks each session's last one."""
    in_time = sorted(requests, key=lambda each: each.at_s)
    last = {request.session: index for index, request in enumerate(in_time)}
    for index in last.values():
        in_time[index] = replace(in_time[index], ends_session=True)
    return Trace(tuple(in_time), block_tokens)


class Symbols:
    """Gives a symbol to each block that is named by its parent's symbol and its content."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], int] = {}
        self._next = 0

    def fresh(self, num_blocks: int) -> PackedTokens:
        """Symbols of blocks that never come again."""
        first, self._next = self._next, self._next + num_blocks
        return pack(range(first, self._next))

    def chain(self, parent: int, contents: Iterator[Sequence[int]]) -> list[int]:
        """Symbols of consecutive blocks, the first of them below `parent` (-1: none)."""
        known, found = self._known, []
        for content in contents:
            parent = known.setdefault((parent, *content), self._next)
            if parent == self._next:
                self._next += 1
            found.append(parent)
        return found

    def forget(self) -> None:
        """No later block equals one of those before; their symbols stay taken."""
        self._known.clear()
