"""From a worker's tokens to the pieces that callers see, for all samples of one request.

Knows which samples have ended, by the worker's word or by a stop string: tokens of an ended sample are nobody's. Owned
by the task of the request.
"""

from __future__ import annotations

from collections.abc import Sequence

from cache_store.errors import ComputationError
from services.router.detokenizer import Decode, Detokenizer
from services.router.generation import Piece
from services.router.sample_text import SampleText
from services.router.stop_strings import StopStrings
from services.router.worker_client import WorkerTokens


class Answer:
    """The samples of one request."""

    def __init__(
        self, num_samples: int, decode: Decode | None, prompt_tail: Sequence[int], stops: Sequence[str]
    ) -> None:
        """`decode` is None for a model without text."""
        self._samples = [
            SampleText(index, Detokenizer(decode, prompt_tail) if decode else None, StopStrings(stops))
            for index in range(num_samples)
        ]
        self._running_at_worker = set(range(num_samples))

    @property
    def has_ended(self) -> bool:
        """Whether all samples have."""
        return all(sample.ended for sample in self._samples)

    @property
    def is_ahead_of_worker(self) -> bool:
        """Whether the worker still computes samples that have ended with a stop string."""
        return any(self._samples[index].ended for index in self._running_at_worker)

    def push(self, made: WorkerTokens) -> Piece | None:
        """The piece that these tokens give; None where the sample had ended with a stop string."""
        if made.sample_index not in self._running_at_worker:
            raise ComputationError("the worker sent tokens of a sample that it does not compute")
        if made.finish is not None:
            self._running_at_worker.remove(made.sample_index)
        sample = self._samples[made.sample_index]
        return None if sample.ended else sample.push(made.tokens, made.finish)
