"""What the courses of several faults share."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from tests.chaos.cluster import Cluster
from tests.chaos.load import Load, Stream

DETECT_S = 3.0
"""A worker that was killed is noticed within that time."""

WINDOW = 30
"""Streams over which a hit rate is taken."""


class Extent(StrEnum):
    """How much of a fault is run."""

    SHORT = "short"
    """What fits into a change's tests."""
    WHOLE = "whole"


async def until_flowing(load: Load, num_streams: int, timeout_s: float = 120.0) -> None:
    """Waits until that many streams have tokens at once."""
    deadline_s = time.monotonic() + timeout_s
    while sum(stream.is_streaming(time.time()) for stream in load.streams) < num_streams:
        assert time.monotonic() < deadline_s, f"{num_streams} streams do not flow at once"
        await asyncio.sleep(0.05)


def busiest(cluster: Cluster, load: Load, at_s: float) -> str:
    """The worker that most streams come from."""
    counts = Counter(stream.first_worker for stream in load.streams if stream.is_streaming(at_s))
    return max(cluster.workers, key=lambda name: counts[name])


def losses(cluster: Cluster, worker: str, since_s: float) -> list[tuple[str, float, int]]:
    """Requests that a worker was lost to, by the routers' logs: id, seconds from `since_s`, tokens sent by then."""
    events = cluster.log_events("request.worker_lost", since_s)
    return [
        (event["request_id"], event["unix_s"] - since_s, event["sent_tokens"])
        for event in events
        if event["worker_id"] == worker
    ]


def longest_silence_s(streams: Iterable[Stream], at_s: float) -> float:
    """The longest that any of these streams waited for a token from `at_s` on; 0 where there is none."""
    return max((stream.silence_s(at_s) for stream in streams), default=0.0)


def by_id(load: Load, ids: Iterable[str]) -> list[Stream]:
    """Streams by the ids of their requests."""
    wanted = set(ids)
    return [stream for stream in load.streams if stream.request_id in wanted]


def hit_rate(load: Load, streams: Sequence[Stream]) -> float:
    """Reused tokens as part of those that could be: the beginnings that prompts share."""
    return sum(min(each.cached_tokens, load.shape.prefix_tokens) for each in streams) / (
        max(1, len(streams)) * load.shape.prefix_tokens
    )


def recovered_s(load: Load, since_s: float, rate: float) -> float | None:
    """Seconds from `since_s` to the end of the first window of streams that hit as often as `rate` and ended well."""
    done = sorted(load.begun_since(since_s), key=lambda stream: stream.ended_s or 0.0)
    for at in range(WINDOW, len(done) + 1):
        window = done[at - WINDOW : at]
        if hit_rate(load, window) >= rate and not any(each.error or each.degraded for each in window):
            return (window[-1].ended_s or 0.0) - since_s
    return None


async def until_recovered(load: Load, since_s: float, rate: float, timeout_s: float) -> float | None:
    """Waits for that; None where it does not come."""
    deadline_s = time.monotonic() + timeout_s
    while (found := recovered_s(load, since_s, rate)) is None and time.monotonic() < deadline_s:
        await asyncio.sleep(0.25)
    return found


async def eventually(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it comes true in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(0.05)
    return True
