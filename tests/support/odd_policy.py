"""A policy that follows no order anybody would guess, but always the same one: what holds with it holds with any."""

from __future__ import annotations

from cache_store.policy import WORTHLESS, ClassId, Outcome, Use, Uses

NUM_CLASSES = 5


class OddPolicy:
    """Values turn with age; what was reused changes them."""

    def __init__(self) -> None:
        self._num_reused = 0

    def uses(self, outcome: Outcome | None, previous: Use | None, now_s: float) -> Uses:
        """A class by whatever is known."""
        if outcome is None:
            use = Use(now_s, ClassId(0))
            return Uses(use, use)
        turn = 1 if previous is None else previous.turn + 1
        own = (outcome.prompt_tokens + 3 * outcome.output_tokens + turn) % NUM_CLASSES
        expires_s = now_s + outcome.ttl_s
        return Uses(
            Use(now_s, ClassId(own), turn=turn, expires_s=expires_s),
            Use(now_s, ClassId((own + 2) % NUM_CLASSES), turn=turn, expires_s=expires_s),
        )

    def reused(self, use: Use, num_blocks: int, now_s: float) -> None:
        """Counts."""
        self._num_reused += num_blocks

    def evicted(self, use: Use, num_blocks: int, now_s: float) -> None:
        """Forgets."""
        self._num_reused //= 2

    def value(self, class_id: ClassId, age_s: float) -> float:
        """Something."""
        if class_id == 1:
            return WORTHLESS
        return (7 * class_id + 3 * age_s + self._num_reused) % 5
