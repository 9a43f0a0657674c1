"""What a generation has made so far, and its readers: any number, each at its own pace.

A reader that is slow costs nothing: the tokens are kept once, and what it has missed reaches it in one piece. Owned by
one event loop; written by the task of the generation, read by its callers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from cache_store.tokens import PackedTokens
from services.router.generation import Finished, FinishReason, GenerationEvent, Piece, SampleSoFar, Started

EVENT_OVERHEAD_BYTES = 512
"""Counted for every result, so that many small ones are bounded too."""


class _Sample:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens = bytearray()
        self.finish: FinishReason | None = None


class Progress:
    """Started, pieces of samples, then the end: finished or an error."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._samples: list[_Sample] = []
        self._finished: Finished | None = None
        self._error: Exception | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._size_bytes = EVENT_OVERHEAD_BYTES

    @property
    def started(self) -> Started | None:
        """None before the first token."""
        return self._started

    @property
    def finished(self) -> Finished | None:
        """None while it runs and where it failed."""
        return self._finished

    @property
    def has_ended(self) -> bool:
        """Whether nothing follows."""
        return self._finished is not None or self._error is not None

    @property
    def size_bytes(self) -> int:
        """What keeping it costs, roughly."""
        return self._size_bytes

    def samples(self) -> tuple[SampleSoFar, ...]:
        """All samples as far as they came."""
        return tuple(
            SampleSoFar(index, "".join(sample.texts), PackedTokens(bytes(sample.tokens)), sample.finish)
            for index, sample in enumerate(self._samples)
        )

    def apply(self, event: GenerationEvent) -> None:
        """Takes the next event."""
        assert not self.has_ended, "nothing follows the end"
        if isinstance(event, Started):
            assert self._started is None, "it starts once"
            self._started = event
            self._samples = [_Sample() for _ in range(event.num_samples)]
        elif isinstance(event, Piece):
            self._append(event)
        else:
            self._finished = event
        self._wake()

    def fail(self, error: Exception) -> None:
        """Ends it with an error, for every reader."""
        assert not self.has_ended, "nothing follows the end"
        self._error = error
        self._wake()

    def events(self) -> AsyncIterator[GenerationEvent]:
        """Everything from the start, pieces merged where the reader was slow. Raises the error that it ended with."""
        return _Reader(self)

    async def ended(self) -> Finished:
        """Waits for the end. Raises the error that it ended with."""
        while not self.has_ended:
            await self.change()
        return self.end()

    def since(self, index: int, num_texts: int, num_tokens: int) -> Piece | None:
        """What a sample gained beyond so many of its texts and bytes of its tokens; None where that is nothing."""
        sample = self._samples[index]
        text = "".join(sample.texts[num_texts:])
        packed = PackedTokens(bytes(sample.tokens[num_tokens:]))
        return Piece(index, text, packed, sample.finish) if text or packed else None

    def sizes(self) -> list[tuple[int, int]]:
        """How many texts, and bytes of tokens, each sample has."""
        return [(len(sample.texts), len(sample.tokens)) for sample in self._samples]

    def _append(self, piece: Piece) -> None:
        sample = self._samples[piece.sample_index]
        assert sample.finish is None, "nothing follows a sample's end"
        if piece.text:
            sample.texts.append(piece.text)
        sample.tokens += piece.tokens
        sample.finish = piece.finish
        self._size_bytes += len(piece.text) * 4 + len(piece.tokens)

    def end(self) -> Finished:
        """How it ended. Raises the error that it ended with."""
        if self._error is not None:
            raise self._error
        assert self._finished is not None
        return self._finished

    async def change(self) -> None:
        """Returns when something has come."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class _Reader:
    """One reader: what it was given, and what it is to be given next."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._ready: deque[GenerationEvent] = deque()
        self._seen: list[tuple[int, int]] | None = None
        """Of each sample; None before the start."""
        self._has_all = False
        """Whether only the end follows what is ready."""
        self._is_over = False

    def __aiter__(self) -> _Reader:
        return self

    async def __anext__(self) -> GenerationEvent:
        while not self._ready:
            if self._is_over:
                raise StopAsyncIteration
            if self._has_all:
                self._is_over = True
                return self._progress.end()
            self._collect()
            if not (self._ready or self._has_all):
                await self._progress.change()
        return self._ready.popleft()

    def _collect(self) -> None:
        progress = self._progress
        self._has_all = progress.has_ended
        if progress.started is None:
            return
        sizes = progress.sizes()
        if self._seen is None:
            self._ready.append(progress.started)
            self._seen = [(0, 0)] * len(sizes)
        for index, (seen, size) in enumerate(zip(self._seen, sizes, strict=True)):
            if seen != size and (piece := progress.since(index, *seen)) is not None:
                self._ready.append(piece)
        self._seen = sizes
