"""Seeds that once failed, and what they had found. They run with every change.

A plan is drawn from its seed, so a change of `plan.py` makes another run of it. What proves that each fault would still
be found are the mutants in `tests/mutants/simulated.py`.
"""

from __future__ import annotations

KEPT_SEEDS: dict[int, str] = {
    5: "prompts of callers who had left counted as on their way for seconds",
    79: "all workers were lost when the registry came back empty after an outage",
    6599: "a removal that came too late was executed after the blocks had been written anew, and nobody noticed",
}
