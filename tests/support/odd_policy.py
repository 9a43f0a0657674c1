"""A policy that follows no order anybody would guess, but always the same one: what holds with it holds with any."""

from __future__ import annotations

from collections.abc import Sequence

from cache_store.policy import WORTHLESS, ClassId, Outcome, Part, Use, UsedBlock

NUM_CLASSES = 5


class OddPolicy:
    """Values turn with age; what was reused changes them."""

    def __init__(self) -> None:
        self._num_reused = 0

    def unknown_use(self, now_s: float) -> Use:
        """Class 0."""
        return Use(now_s, ClassId(0))

    def uses(
        self, outcome: Outcome, blocks: Sequence[UsedBlock], num_prompt_blocks: int, now_s: float
    ) -> Sequence[Part]:
        """Two classes by whatever is known."""
        previous = [block.use for block in blocks if block.use is not None]
        self._num_reused += len(previous)
        turn = 1 + max((use.turn for use in previous), default=0)
        own = (outcome.prompt_tokens + 3 * outcome.output_tokens + turn) % NUM_CLASSES
        expires_s = now_s + outcome.ttl_s
        return (
            Part(Use(now_s, ClassId((own + 2) % NUM_CLASSES), turn=turn, expires_s=expires_s), len(blocks) // 2),
            Part(Use(now_s, ClassId(own), turn=turn, expires_s=expires_s), len(blocks)),
        )

    def value(self, class_id: ClassId, age_s: float) -> float:
        """Something."""
        if class_id == 1:
            return WORTHLESS
        return (7 * class_id + 3 * age_s + self._num_reused) % 5
