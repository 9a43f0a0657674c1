"""Garbage collection of a router's process: what lives as long as the process is not looked at again and again.

Requests leave hardly anything that counting references does not free. Called once, by the process's entry point.
"""

from __future__ import annotations

import gc

YOUNGEST = 20_000
"""Objects that are made before the youngest are looked at. Python's own bound, 700, is reached by a few requests."""


def collect_seldom() -> None:
    """What was made so far is taken for lasting."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNGEST, *gc.get_threshold()[1:])
