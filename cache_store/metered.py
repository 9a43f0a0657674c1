"""What is counted of a tenant for its bill and for the operator, and how counts are written down.

Counts only grow. Nothing is counted twice: tokens and requests by the router that answered, blocks by the worker that
has them. Values; nobody owns them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

HOUR_S = 3_600

RETAINED_HOURS = 35 * 24
"""A month and a few days: then an hour is forgotten."""


class Metered(StrEnum):
    """One kind of count; the value is its name in the store."""

    COMPLETED = "completed"
    """Requests that ended well."""
    CANCELLED = "cancelled"
    """Requests that their caller ended, or left."""
    EXPIRED = "expired"
    """Requests whose deadline passed."""
    REFUSED = "refused"
    """Requests that were not begun: over a limit, no room, or bad."""
    FAILED = "failed"
    """Requests that were begun and could not be ended."""
    PROMPT = "prompt"
    """Tokens of prompts whose answer began."""
    CACHED_DEVICE = "cached_device"
    """Of them reused, by the tier where they lay."""
    CACHED_HOST = "cached_host"
    CACHED_DISK = "cached_disk"
    CACHED_PEER = "cached_peer"
    COMPUTED = "computed"
    """Of them not reused."""
    GENERATED = "generated"
    """Tokens of answers."""
    RECOMPUTED = "recomputed"
    """Tokens computed again after preemptions; part of nothing else, and not the tenant's to pay."""
    SAVED_US = "saved_us"
    """Microseconds of prefill that reuse has saved, estimated."""
    DEVICE_BLOCK_MS = "device_block_ms"
    """Blocks held or cached × milliseconds, by tier."""
    HOST_BLOCK_MS = "host_block_ms"
    DISK_BLOCK_MS = "disk_block_ms"
    EVICTED = "evicted"
    """Its cached blocks that left the device."""
    EVICTED_FOR_OTHERS = "evicted_for_others"
    """Of them, those that made room for another tenant."""
    CAUSED = "caused"
    """Other tenants' cached blocks that made room for it."""


Counts = Mapping[Metered, int]
"""Those that are not named are 0."""

OUTCOMES = (Metered.COMPLETED, Metered.CANCELLED, Metered.EXPIRED, Metered.REFUSED, Metered.FAILED)

_ENTRY = re.compile(r"([a-z_]{1,32}):([0-9]{1,18})")
_KNOWN = {kind.value: kind for kind in Metered}


def counts_text(counts: Counts) -> str:
    """As it is stored: `prompt:12 generated:3`."""
    return " ".join(f"{kind.value}:{number}" for kind, number in counts.items() if number)


def parse_counts(text: str) -> Counter[Metered]:
    """Counts of a text; what this build does not know is left out."""
    counts: Counter[Metered] = Counter()
    for entry in text.split():
        found = _ENTRY.fullmatch(entry)
        if found is not None and (kind := _KNOWN.get(found[1])) is not None:
            counts[kind] += int(found[2])
    return counts


def hour_of(unix_s: float) -> int:
    """Number of the hour since 1970."""
    return int(unix_s // HOUR_S)
