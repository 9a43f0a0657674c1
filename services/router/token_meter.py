"""What one request costs its tenant in tokens, against what was taken for it at admission. Pure.

Prompt tokens that were not cached and tokens made count. Taken is an estimate: the index says what is cached, earlier
requests say how much will be made. It is corrected when the worker has said what it computes, while more is made than
was expected, and at the end.
"""

from __future__ import annotations

from collections.abc import Callable

from cache_store.errors import CancelledRequestError, DeadlineError
from cache_store.tokens import count
from services.router.generation import GenerationEvent, Piece, Started


class TokenMeter:
    """Of one request."""

    def __init__(self, prompt: int, made: int, spend: Callable[[int], None]) -> None:
        """`prompt` and `made` have been taken. `spend` is told of each difference; a negative one is given back."""
        self._prompt = prompt
        self._expected = made
        self._spend = spend
        self._has_started = False
        self.made = 0

    def note(self, event: GenerationEvent) -> None:
        """Something came from the worker."""
        if isinstance(event, Started):
            self._has_started = True
            self._spend(event.prompt_tokens - event.cached.total - self._prompt)
        elif isinstance(event, Piece):
            before = max(self.made, self._expected)
            self.made += count(event.tokens)
            if self.made > before:
                self._spend(self.made - before)

    def end(self, error: BaseException | None) -> None:
        """The request is over. A prompt may have been computed for one that was given up; any other failure before the
        first token costs nothing."""
        unused = max(0, self._expected - self.made)
        if not self._has_started and not _was_given_up(error):
            unused += self._prompt
        if unused:
            self._spend(-unused)


def _was_given_up(error: BaseException | None) -> bool:
    return not isinstance(error, Exception) or isinstance(error, CancelledRequestError | DeadlineError)
