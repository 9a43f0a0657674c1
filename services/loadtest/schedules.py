"""An open loop's sessions, drawn before the clock runs, and how much of a load fits this process. Holds no state.

Drawing gives way to signals: a load that was asked for by mistake is ended by Ctrl-C, and is refused before it has
taken the machine's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np

from cache_store.errors import InvalidRequestError
from cache_store.tokens import PackedTokens
from services.loadtest.arrivals import (
    MAX_REQUESTS,
    Arrival,
    Bounds,
    ClosedLoop,
    OpenLoop,
    TraceTimes,
    arrival_times,
)
from services.loadtest.sessions import Session, Workload

Schedule = list[tuple[float, Session]]

MAX_PROMPT_BYTES = 2 << 30
"""Of prompts that wait to be sent; what several share counts once."""
_AT_ONCE = 256


async def drawn(
    workload: Workload, arrival: Arrival, bounds: Bounds, rng: np.random.Generator, stop: asyncio.Event
) -> Schedule:
    """Sessions and when they start; nothing for a closed loop. Raises InvalidRequestError where they are too many."""
    found: Schedule = []
    known: set[int] = set()
    num_requests = num_bytes = 0
    for at_s, session in _timed(workload, arrival, bounds, rng):
        found.append((at_s, session))
        num_requests += len(session.turns)
        num_bytes += sum(len(part) for part in _new_parts(session, known))
        if num_requests > MAX_REQUESTS or num_bytes > MAX_PROMPT_BYTES:
            raise InvalidRequestError(
                "num-prompts",
                f"after {at_s:,.1f} s this load has {num_requests:,} requests with {num_bytes >> 20:,} MiB of prompts, "
                f"and at most {MAX_REQUESTS:,} with {MAX_PROMPT_BYTES >> 20:,} MiB are made ready; lower "
                "--num-prompts, --request-rate or --duration",
            )
        if len(found) % _AT_ONCE == 0:
            await asyncio.sleep(0)
            if stop.is_set():
                break
    return found


def _new_parts(session: Session, known: set[int]) -> Iterator[PackedTokens]:
    """Parts that no session before had; all of them are kept, so that an id stays one object's."""
    for turn in session.turns:
        for part in turn.parts:
            if id(part) not in known:
                known.add(id(part))
                yield part


def _timed(
    workload: Workload, arrival: Arrival, bounds: Bounds, rng: np.random.Generator
) -> Iterator[tuple[float, Session]]:
    sessions = bounded(workload.sessions, bounds)
    match arrival:
        case OpenLoop():
            yield from zip(arrival_times(arrival, bounds, workload.requests_per_session, rng), sessions, strict=False)
        case TraceTimes():
            for session in sessions:
                at_s = session.at_s or 0.0
                if bounds.duration_s is None or at_s < bounds.duration_s:
                    yield at_s, session
        case ClosedLoop():
            return


def bounded(sessions: Iterator[Session], bounds: Bounds) -> Iterator[Session]:
    """Sessions until they have made as many requests as there may be; the last one is cut."""
    if bounds.num_requests is None:
        yield from sessions
        return
    left = bounds.num_requests
    while left > 0:
        session = next(sessions, None)
        if session is None:
            return
        session = session.cut(left)
        left -= len(session.turns)
        yield session
