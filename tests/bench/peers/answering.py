"""How a side of the engine benchmark is talked to: questions and answers as JSON lines, one at a time.

Imports nothing of ours, so that it works in any environment. Whatever else a side prints goes to its log.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping

Question = dict[str, int]
Answer = dict[str, object]


def reserve_output() -> Callable[[object], None]:
    """Keeps standard output for answers; what else is printed goes to standard error. To be called first."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def write(answer: object) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    return write


def answer_all(
    write: Callable[[object], None], info: Answer, handlers: Mapping[str, Callable[[Question], Answer]]
) -> None:
    """Says what it is, then answers until the input ends. A question is the name of a row and its numbers."""
    write(info | {"rows": sorted(handlers)})
    for line in sys.stdin:
        row, question = json.loads(line)
        write(handlers[row](question))


def random_tokens(seed: int, number: int, vocab_size: int) -> list[int]:
    """The same in every process; none of the special ones at the beginning of the vocabulary."""
    rng = random.Random(seed)
    return [rng.randrange(100, vocab_size) for _ in range(number)]


def timed(call: Callable[[], object]) -> float:
    """Seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
