"""A stream that goes on when the router that answers is lost: asked again, and what its reader has is left out.

gRPC repeats a call only until the first message of its answer. After it the same request is sent once more, where the
router is away, or stops and says when to ask another one (ABORTED with RetryInfo): to a router that runs it, which
tells everything from the start, or to another one, which computes it again, most of the prompt from the cache. Tokens
follow from prompt, sampling and seed, which the message names, so the answer is the same; each one that the reader has
is compared. Owned by the iterator that reads the stream.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import grpc
from stemcache.v1 import inference_pb2 as pb

from services.client import messages
from services.client.errors import ApiAbortedError, ApiError, ApiLimitError, ApiUnavailableError, ErrorDetails
from services.client.requests import GenerationRequest
from services.client.results import (
    Completion,
    Delta,
    FinishReason,
    GenerationEvent,
    GenerationFinished,
    GenerationStarted,
)

MAX_REPEATS = 3
"""Of one stream, after its first event."""

MAX_WAITS = 15
"""Of one stream, for the place that its own lost call has among its tenant's: it is free some seconds later."""


@dataclass(slots=True)
class _Sample:
    """What of one sample the reader has, and how much of it the call of now has told."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    told_chars: int = 0
    told_tokens: int = 0

    def take(self, delta: Delta) -> Delta | None:
        """What is new of `delta`; None where nothing is. Raises ValueError where it is not what the reader has."""
        num_chars = min(len(self.text) - self.told_chars, len(delta.text))
        num_tokens = min(len(self.token_ids) - self.told_tokens, len(delta.token_ids))
        had_text = self.text[self.told_chars : self.told_chars + num_chars]
        had_tokens = self.token_ids[self.told_tokens : self.told_tokens + num_tokens]
        if had_text != delta.text[:num_chars] or had_tokens != list(delta.token_ids[:num_tokens]):
            raise ValueError("another answer")
        self.told_chars += len(delta.text)
        self.told_tokens += len(delta.token_ids)
        fresh = replace(delta, text=delta.text[num_chars:], token_ids=delta.token_ids[num_tokens:])
        self.text += fresh.text
        self.token_ids += fresh.token_ids
        return fresh if fresh.text or fresh.token_ids else None

    @property
    def is_behind(self) -> bool:
        """Whether the reader has more than was told."""
        return self.told_chars < len(self.text) or self.told_tokens < len(self.token_ids)


class UnbrokenStream:
    """One request from its first call to its end."""

    def __init__(self, request: GenerationRequest, timeout_s: float) -> None:
        """`timeout_s`: for all calls together."""
        self.message = pb.GenerateStreamRequest(request=messages.generate_message(request))
        """The same each time: a router that runs it attaches to it."""
        self.is_over = False
        """Whether nothing follows, however the call of now ends."""
        self._until_s = time.monotonic() + timeout_s
        self._samples: dict[int, _Sample] = {}
        self._has_started = False
        self._num_repeats = self._num_waits = 0

    @property
    def left_s(self) -> float:
        """For the next call."""
        return max(0.0, self._until_s - time.monotonic())

    def take(self, response: pb.GenerateStreamResponse) -> GenerationEvent | None:
        """What is new to the reader. Raises ApiAbortedError where the answer is another one than before."""
        event = messages.event_of(response)
        match event:
            case GenerationStarted():
                if self._has_started:
                    return None
                self._has_started = True
            case Delta():
                try:
                    return self._samples.setdefault(event.sample_index, _Sample()).take(event)
                except ValueError:
                    raise self._parted() from None
            case GenerationFinished():
                if self._is_short(event):
                    raise self._parted()
                self.is_over = True
        return event

    def end(self) -> None:
        """The call has ended well."""
        self.is_over = True

    def lose(self, error: ApiError) -> float:
        """The call ended with `error`: seconds after which the request is to be sent again. Else `error` is raised."""
        if self.is_over:
            return 0.0  # the answer is whole; only its status is lacking
        pause_s = self._pause_s(error)
        if pause_s is None or not self._has_started or self.left_s <= pause_s:
            raise error
        for sample in self._samples.values():
            sample.told_chars = sample.told_tokens = 0
        return pause_s

    def _pause_s(self, error: ApiError) -> float | None:
        """None where another call would be no better."""
        retry_after_s = error.details.retry_after_s
        if isinstance(error, ApiLimitError):
            self._num_waits += 1
            return retry_after_s if self._num_repeats and self._num_waits <= MAX_WAITS else None
        self._num_repeats += 1
        is_lost = isinstance(error, ApiUnavailableError) or retry_after_s is not None
        return 0.0 if is_lost and self._num_repeats <= MAX_REPEATS else None

    def _is_short(self, event: GenerationFinished) -> bool:
        """Whether it ends before what the reader has, and not because it was cancelled."""
        cancelled = {each.sample_index for each in event.samples if each.finish_reason is FinishReason.CANCELLED}
        return any(sample.is_behind for index, sample in self._samples.items() if index not in cancelled)

    def _parted(self) -> ApiAbortedError:
        partial = tuple(
            Completion(index, sample.text, tuple(sample.token_ids), FinishReason.UNFINISHED)
            for index, sample in sorted(self._samples.items())
        )
        message = "the router was lost while it answered, and another one made other tokens"
        return ApiAbortedError(grpc.StatusCode.ABORTED, message, ErrorDetails(partial=partial))
