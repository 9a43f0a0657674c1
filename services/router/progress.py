"""What a generation has made so far, and its readers: any number, each at its own pace.

A reader that is slow costs nothing: the tokens are kept once, and what it has missed reaches it in one piece. Owned by
one event loop; written by the task of the generation, read by its callers.
"""

from __future__ import annotations

import asyncio
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

    async def events(self) -> AsyncIterator[GenerationEvent]:
        """Everything from the start, pieces merged where the reader was slow. Raises the error that it ended with."""
        while self._started is None and not self.has_ended:
            await self._change()
        if self._started is not None:
            yield self._started
        texts = [0] * len(self._samples)
        tokens = [0] * len(self._samples)
        while True:
            has_ended = self.has_ended
            for index, sample in enumerate(self._samples):
                piece = _since(index, sample, texts[index], tokens[index])
                texts[index], tokens[index] = len(sample.texts), len(sample.tokens)
                if piece is not None:
                    yield piece
            if has_ended:
                break
            if not self._has_more(texts, tokens):
                await self._change()
        yield self._end()

    async def ended(self) -> Finished:
        """Waits for the end. Raises the error that it ended with."""
        while not self.has_ended:
            await self._change()
        return self._end()

    def _append(self, piece: Piece) -> None:
        sample = self._samples[piece.sample_index]
        assert sample.finish is None, "nothing follows a sample's end"
        if piece.text:
            sample.texts.append(piece.text)
        sample.tokens += piece.tokens
        sample.finish = piece.finish
        self._size_bytes += len(piece.text) * 4 + len(piece.tokens)

    def _end(self) -> Finished:
        if self._error is not None:
            raise self._error
        assert self._finished is not None
        return self._finished

    def _has_more(self, texts: list[int], tokens: list[int]) -> bool:
        """Whether something came while the reader was busy with a piece."""
        return self.has_ended or any(
            len(sample.texts) != texts[index] or len(sample.tokens) != tokens[index]
            for index, sample in enumerate(self._samples)
        )

    async def _change(self) -> None:
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


def _since(index: int, sample: _Sample, texts: int, tokens: int) -> Piece | None:
    text = "".join(sample.texts[texts:])
    packed = PackedTokens(bytes(sample.tokens[tokens:]))
    return Piece(index, text, packed, sample.finish) if text or packed else None
