"""How much every row of the engine benchmark measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests at once that share a beginning, in tokens."""

    requests: int = 16
    shared: int = 1024
    own: int = 64
    output: int = 64


@dataclass(frozen=True, slots=True)
class Kernel:
    """One decode call of attention."""

    rows: int = 8
    context: int = 4096
    calls: int = 60


@dataclass(frozen=True, slots=True)
class Waste:
    """A simulated load; lengths in tokens."""

    requests: int = 400
    at_once: int = 48
    mean_prompt: int = 1000
    mean_output: int = 300


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of all rows."""

    contexts: tuple[int, ...] = (1024, 2048, 4096)
    """Of cold and warm prompts."""
    num_new: int = 32
    """Tokens of a warm prompt that are not cached."""
    decode_contexts: tuple[int, ...] = (1024, 4096)
    num_skipped: int = 3
    """Decode steps before those that count."""
    num_decoded: int = 32
    batch: Batch = Batch()
    overhead_rows: int = 32
    overhead_context: int = 512
    kernel: Kernel = Kernel()
    waste: Waste = Waste()


QUICK = Sizes(
    contexts=(96, 128),
    decode_contexts=(64,),
    num_decoded=4,
    batch=Batch(requests=3, shared=64, own=8, output=4),
    overhead_rows=4,
    overhead_context=48,
    kernel=Kernel(rows=2, context=64, calls=2),
    waste=Waste(requests=12, at_once=4, mean_prompt=100, mean_output=30),
)
"""To see that everything works; its figures mean nothing."""
