"""Reads kv-cache-tester's traces: a session a line, its requests with times from its start, subagents within them.

Hash ids stand for `block_size` tokens and are local to their session. Ids are grouped to larger blocks by the ids that
they consist of and the block before; the last group may be a partial one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from cache_store.errors import InvalidRequestError
from cache_store.replay.lines import Line
from cache_store.replay.schedule import SessionSchedule
from cache_store.replay.trace import Symbols, Trace, TraceRequest, ordered
from cache_store.tokens import pack

SUBAGENT = "subagent"


def read(first: Line, rest: Iterator[Line], block_tokens: int, schedule: SessionSchedule) -> Trace:
    """Reads all lines."""
    symbols = Symbols()
    requests: list[TraceRequest] = []
    for number, line in enumerate(chain((first,), rest)):
        start_s = number * schedule.start_every_s
        requests += _Session(line, number, start_s, block_tokens, symbols).requests(schedule.cut_after_s)
        symbols.forget()
    return ordered(requests, block_tokens)


class _Session:
    """One line."""

    def __init__(self, line: Line, number: int, start_s: float, block_tokens: int, symbols: Symbols) -> None:
        self._line = line
        self._number = number
        self._start_s = start_s
        self._symbols = symbols
        self._fields = line.json_object()
        if self._fields.get("hash_id_scope", "local") != "local":
            raise line.error("hash_id_scope must be local")
        hash_tokens = int(line.number_in(self._fields, "block_size"))
        if hash_tokens < 1 or block_tokens % hash_tokens:
            raise InvalidRequestError(
                "block-tokens", f"{line.path} has {hash_tokens} tokens a hash; {block_tokens} is no multiple of that"
            )
        self._group = block_tokens // hash_tokens
        self._last_ids: list[int] = []
        self._last_blocks: list[int] = []

    def requests(self, cut_after_s: float) -> Iterator[TraceRequest]:
        """Requests that arrive before the cut, subagents' after their parent's."""
        return self._requests_of(self._fields, 0.0, cut_after_s)

    def _requests_of(self, owner: dict[str, object], offset_s: float, cut_after_s: float) -> Iterator[TraceRequest]:
        listed = owner.get("requests")
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise self._line.error("requests must be a list of objects")
        for fields in listed:
            at_s = offset_s + self._line.number_in(fields, "t")
            if fields.get("type") == SUBAGENT:
                yield from self._requests_of(fields, at_s, cut_after_s)
            elif at_s < cut_after_s:
                yield self._request(fields, at_s)

    def _request(self, fields: dict[str, object], at_s: float) -> TraceRequest:
        return TraceRequest(
            at_s=self._start_s + at_s,
            session=self._number,
            prompt_tokens=int(self._line.number_in(fields, "in")),
            output_tokens=int(self._line.number_in(fields, "out")),
            stop=self._line.text_in(fields, "stop"),
            blocks=pack(self._blocks(self._line.ids_in(fields, "hash_ids"))),
        )

    def _blocks(self, ids: list[int]) -> list[int]:
        """Symbols of the groups; those that the request before had are taken from it."""
        group = self._group
        same = _equal_groups(self._last_ids, ids, group)
        blocks = self._last_blocks[:same]
        contents = (ids[at : at + group] for at in range(same * group, len(ids), group))
        blocks += self._symbols.chain(blocks[-1] if blocks else -1, contents)
        self._last_ids, self._last_blocks = ids, blocks
        return blocks


def _equal_groups(a: list[int], b: list[int], group: int) -> int:
    """Leading whole groups that are equal, by halving."""
    low, high = 0, min(len(a), len(b)) // group
    while low < high:
        middle = (low + high + 1) // 2
        if a[low * group : middle * group] == b[low * group : middle * group]:
            low = middle
        else:
            high = middle - 1
    return low
