"""What an open loop draws before its clock runs: bounded, and ended by who asks for it."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from cache_store.errors import InvalidRequestError
from cache_store.tokens import pack
from services.loadtest import schedules
from services.loadtest.arrivals import Bounds, OpenLoop
from services.loadtest.schedules import Schedule, drawn
from services.loadtest.sessions import Session, Turn, Workload
from services.loadtest.token_source import stable_rng

PREFIX = pack(list(range(64)))


def shared(num_own: int = 1) -> Workload:
    own = (pack([number] * num_own) for number in itertools.count())
    return Workload("w", (Session("s", (Turn((PREFIX, each), 1),)) for each in own))


async def of(workload: Workload, rate: float, bounds: Bounds, stop: asyncio.Event | None = None) -> Schedule:
    return await drawn(workload, OpenLoop(rate), bounds, stable_rng("t"), stop or asyncio.Event())


async def test_more_requests_than_this_process_keeps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "MAX_REQUESTS", 1_000)
    assert len(await of(shared(), 1e6, Bounds(1_000, None))) == 1_000
    with pytest.raises(InvalidRequestError, match="lower --num-prompts, --request-rate or --duration"):
        await of(shared(), 1e9, Bounds(None, 3_600.0))


async def test_prompts_are_bounded_and_what_they_share_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "MAX_PROMPT_BYTES", 1 << 20)
    assert len(await of(shared(num_own=1), 1e6, Bounds(10_000, None))) == 10_000
    with pytest.raises(InvalidRequestError, match="1 MiB of prompts"):
        await of(shared(num_own=1_024), 1e6, Bounds(10_000, None))


async def test_drawing_ends_when_it_is_asked_to() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    assert len(await of(shared(), 1e9, Bounds(None, 3_600.0), stop)) < 1_000
