"""What one request lost because its blocks were given to others. Owned by the request; times are the caller's."""

from __future__ import annotations


class Setbacks:
    """Preemptions of a request and what they cost it."""

    __slots__ = (
        "_num_stopped",
        "_since_s",
        "num_preemptions",
        "preempted_s",
        "recompute_s",
        "recomputed_tokens",
        "swap_s",
    )

    def __init__(self) -> None:
        self.num_preemptions = 0
        self.preempted_s = 0.0
        """Time in which at least one of its sequences stood still."""
        self.recompute_s = 0.0
        self.recomputed_tokens = 0
        self.swap_s = 0.0
        """Time in which its sequences waited for blocks from a lower tier."""
        self._num_stopped = 0
        self._since_s = 0.0

    def preempt(self, num_sequences: int, now_s: float) -> None:
        """All its running sequences were stopped; so many of them had run since they were stopped last."""
        if self._num_stopped == 0:
            self._since_s = now_s
        self._num_stopped += num_sequences
        self.num_preemptions += 1

    def resume(self, now_s: float) -> None:
        """A preempted sequence is in a step again."""
        assert self._num_stopped > 0, "it resumes as often as it was stopped"
        self._num_stopped -= 1
        if self._num_stopped == 0:
            self.preempted_s += now_s - self._since_s

    def recompute(self, num_tokens: int, seconds: float) -> None:
        """Tokens that had been computed before were computed again."""
        self.recomputed_tokens += num_tokens
        self.recompute_s += seconds
