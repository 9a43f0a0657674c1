"""What one request has produced and nobody has read yet: the hand-over from the engine thread to the gRPC edge.

Filled and read on the event loop only, so it needs no lock. It is bounded by the request itself (`max_tokens` for each
sample, four bytes a token): a slow reader holds back only its own answer, never a step. Knows no gRPC.
"""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass

from cache_store.errors import StemcacheError
from cache_store.tokens import PackedTokens, pack
from worker.requests import EngineOutput, Finish, Finished, Generated, Started


@dataclass(frozen=True, slots=True)
class SampleTokens:
    """Everything of one sample since the last read."""

    sample_index: int
    tokens: PackedTokens
    finish: Finish | None


OutboxItem = Started | SampleTokens | Finished


class Outbox:
    """The unread output of one request. One writer (the loop's delivery), one reader (the call)."""

    def __init__(self) -> None:
        self._ready = asyncio.Event()
        self._started: Started | None = None
        self._tokens: dict[int, array[int]] = {}
        self._finishes: dict[int, Finish] = {}
        self._finished: Finished | None = None
        self._error: StemcacheError | None = None

    @property
    def ended(self) -> bool:
        """Whether the last output is in; more would be a programming error."""
        return self._finished is not None or self._error is not None

    def put(self, output: EngineOutput) -> None:
        """Adds one output of the engine."""
        assert not self.ended, "an output after the last one"
        if isinstance(output, Started):
            self._started = output
        elif isinstance(output, Generated):
            self._tokens.setdefault(output.sample_index, array("I")).extend(output.token_ids)
            if output.finish is not None:
                self._finishes[output.sample_index] = output.finish
        elif isinstance(output, Finished):
            self._finished = output
        else:
            self._error = output.error
        self._ready.set()

    def fail(self, error: StemcacheError) -> None:
        """Ends the request with `error`, unless it has ended."""
        if not self.ended:
            self._error = error
            self._ready.set()

    async def take(self) -> list[OutboxItem]:
        """Everything since the last call, in order, waiting until there is something. `Finished` is the last item.

        Raises the error of a failed request, after all that came before it was taken.
        """
        await self._ready.wait()
        items: list[OutboxItem] = []
        if self._started is not None:
            items.append(self._started)
            self._started = None
        items.extend(self._take_tokens())
        if self._finished is not None:
            items.append(self._finished)
        if self._error is not None:
            if items:
                return items  # the error stays, and so does the flag
            raise self._error
        self._ready.clear()
        return items

    def _take_tokens(self) -> list[SampleTokens]:
        samples = sorted(self._tokens.keys() | self._finishes.keys())
        taken = [SampleTokens(index, pack(self._tokens.get(index, ())), self._finishes.get(index)) for index in samples]
        self._tokens.clear()
        self._finishes.clear()
        return taken
