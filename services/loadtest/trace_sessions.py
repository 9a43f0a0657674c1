"""A public trace as a workload: its hash ids become stable synthetic blocks, its requests keep their times.

Requests of a trace are known in whole ahead, so each is a session of one turn here, at its own time, under the trace's
session as name. Prompts that the model does not take are cut at their end, so that they keep what they share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cache_store.errors import InvalidRequestError
from cache_store.replay.trace import Trace, TraceRequest
from cache_store.replay.trace_files import ReadOptions, read_trace
from cache_store.tokens import PackedTokens, part, unpack
from services.loadtest.sessions import Session, Turn, Workload
from services.loadtest.token_source import TokenSource
from services.loadtest.workloads import ModelRoom, WorkloadKind, WorkloadSpec

MIN_ROOM = 2
"""A prompt of a token, and one for the answer."""


def trace_workload(spec: WorkloadSpec, tokens: TokenSource, room: ModelRoom) -> Workload:
    """Raises InvalidRequestError where the file is no trace."""
    if not spec.trace:
        raise InvalidRequestError("trace", "the workload `trace` reads a file; give --trace PATH")
    path = Path(spec.trace).expanduser()
    try:
        trace = read_trace(path, ReadOptions(block_tokens=0))
    except OSError as error:
        raise InvalidRequestError("trace", f"{path} cannot be read: {error.strerror}") from error
    return of_trace(trace, spec, tokens, room)


def of_trace(trace: Trace, spec: WorkloadSpec, tokens: TokenSource, room: ModelRoom) -> Workload:
    """Sessions of a trace that was read."""
    reader = _Reader(trace, spec, tokens, room)
    num_cut = sum(reader.is_cut(request) for request in trace.requests)
    note = (
        f"{num_cut} of {len(trace.requests)} requests of the trace are longer than the model's "
        f"{room.max_model_len:,} tokens and are cut; --trace-block-tokens makes all of them shorter"
    )
    return Workload(WorkloadKind.TRACE, reader.sessions(), notes=(note,) if num_cut else ())


class _Reader:
    """Makes sessions out of a trace."""

    def __init__(self, trace: Trace, spec: WorkloadSpec, tokens: TokenSource, room: ModelRoom) -> None:
        self._trace = trace
        self._tokens = tokens
        self._block_tokens = spec.trace_block_tokens or trace.block_tokens
        self._scale = self._block_tokens / trace.block_tokens
        self._time_scale = spec.time_scale
        self._max_len = max(MIN_ROOM, room.max_model_len)

    def is_cut(self, request: TraceRequest) -> bool:
        """Whether it is longer than the model takes."""
        return self._prompt_len(request) + self._output_len(request) > self._max_len

    def sessions(self) -> Iterator[Session]:
        """In order of time."""
        turns: Counter[int] = Counter()
        start_s = self._trace.requests[0].at_s if self._trace.requests else 0.0
        for request in self._trace.requests:
            number = turns[request.session]
            turns[request.session] += 1
            output = min(self._output_len(request), self._max_len - 1)
            yield Session(
                f"t{request.session}",
                (Turn(self._parts(request, self._max_len - output), output),),
                at_s=(request.at_s - start_s) * self._time_scale,
                first_turn=number,
                is_conversation=True,
            )

    def _parts(self, request: TraceRequest, room: int) -> tuple[PackedTokens, ...]:
        left = min(self._prompt_len(request), room)
        parts = []
        for symbol in unpack(request.blocks):
            if left <= 0:
                break
            block = self._tokens.block(symbol, self._block_tokens)
            parts.append(block if left >= self._block_tokens else part(block, 0, left))
            left -= self._block_tokens
        if not parts:
            parts.append(self._tokens.fresh(1))
        return tuple(parts)

    def _prompt_len(self, request: TraceRequest) -> int:
        length = max(1, round(request.prompt_tokens * self._scale))
        return min(length, max(1, request.num_blocks * self._block_tokens))

    def _output_len(self, request: TraceRequest) -> int:
        return max(1, round(request.output_tokens * self._scale))
