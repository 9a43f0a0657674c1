"""What a request carries from a worker that was lost to the next one: the tokens that came, and the answer of them.

A request with one sample goes on from prompt and tokens. One with several is computed again from its beginning, and
what came already is compared and skipped: random numbers are counted, so the tokens are the same. Owned by the task of
the request.
"""

from __future__ import annotations

from dataclasses import replace

from cache_store.errors import ComputationError, WorkerLostError
from cache_store.tokens import TOKEN_BYTES, PackedTokens
from services.router.answer import Answer
from services.router.worker_client import WorkerTokens


class DivergedError(WorkerLostError):
    """The worker of now makes other tokens than those that have gone out."""


class Carried:
    """Of one request."""

    def __init__(self, answer: Answer, num_samples: int) -> None:
        self.answer = answer
        self.first_token_s: float | None = None
        """By the monotonic clock; None before it."""
        self._tokens = [bytearray() for _ in range(num_samples)]
        self._to_skip = [0] * num_samples
        """Leading bytes of each sample that the worker of now will send again."""
        self._has_ended = [False] * num_samples

    @property
    def has_begun(self) -> bool:
        """Whether tokens have gone out: they cannot be taken back."""
        return self.first_token_s is not None

    @property
    def prefix(self) -> PackedTokens:
        """Tokens that belong to the prompt of the worker of now."""
        return PackedTokens(bytes(self._tokens[0])) if len(self._tokens) == 1 else PackedTokens(b"")

    @property
    def num_done(self) -> int:
        """Tokens of `prefix`."""
        return len(self.prefix) // TOKEN_BYTES

    @property
    def num_sent(self) -> int:
        """Tokens of all samples that have gone out."""
        return sum(map(len, self._tokens)) // TOKEN_BYTES

    def begin(self) -> None:
        """Another worker begins."""
        self._to_skip = [0 if len(self._tokens) == 1 else len(tokens) for tokens in self._tokens]

    def take(self, made: WorkerTokens) -> WorkerTokens | None:
        """What of a worker's tokens is new; None where nothing is.

        Raises DivergedError.
        """
        index = made.sample_index
        if not 0 <= index < len(self._tokens):
            raise ComputationError("the worker sent tokens of a sample that it does not compute")
        tokens = self._tokens[index]
        skipped = min(self._to_skip[index], len(made.tokens))
        start = len(tokens) - self._to_skip[index]
        if tokens[start : start + skipped] != made.tokens[:skipped]:
            raise DivergedError("the worker was lost while it answered, and another one made other tokens")
        self._to_skip[index] -= skipped
        fresh = PackedTokens(made.tokens[skipped:])
        if self._has_ended[index] and not fresh:
            return None  # its end has come before
        if not fresh and made.finish is None:
            return None
        tokens += fresh
        self._has_ended[index] = made.finish is not None
        return replace(made, tokens=fresh) if skipped else made
