"""Sessions end by time and number; wrong keys are slowed down."""

from __future__ import annotations

import pytest

from cache_store.clock import ManualClock
from services.console.sessions import FAILURES_AT_ONCE, IDLE_S, LIFETIME_S, MAX_SESSIONS, LoginGuard, Sessions


class Client:
    """Notes whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


async def test_a_session_is_found_by_its_name_until_it_ends() -> None:
    sessions: Sessions[Client] = Sessions(ManualClock())
    client = Client()
    name = await sessions.open(client)
    assert await sessions.find(name) is client
    assert await sessions.find(name + "x") is None
    assert await sessions.find("\ud800") is None
    await sessions.end(name)
    assert await sessions.find(name) is None
    assert client.is_closed


@pytest.mark.parametrize(("looks", "every_s"), [(1, IDLE_S + 1), (int(LIFETIME_S // (IDLE_S - 1)) + 1, IDLE_S - 1)])
async def test_a_session_ends_when_nobody_uses_it_and_at_last_anyway(looks: int, every_s: float) -> None:
    clock = ManualClock()
    sessions: Sessions[Client] = Sessions(clock)
    client = Client()
    name = await sessions.open(client)
    for _ in range(looks):
        assert await sessions.find(name) is client
        clock.advance(every_s)
    assert await sessions.find(name) is None
    assert client.is_closed


async def test_the_one_used_longest_ago_gives_way() -> None:
    sessions: Sessions[Client] = Sessions(ManualClock())
    first, second = await sessions.open(Client()), await sessions.open(Client())
    assert await sessions.find(first) is not None
    for _ in range(MAX_SESSIONS - 1):
        await sessions.open(Client())
    assert await sessions.find(second) is None
    assert await sessions.find(first) is not None


def test_wrong_keys_take_longer_and_longer_and_right_ones_cost_nothing() -> None:
    clock = ManualClock()
    guard = LoginGuard(clock)
    for _ in range(20):
        assert guard.wait_s() == 0
        guard.take()
        guard.give_back()
    for _ in range(int(FAILURES_AT_ONCE)):
        assert guard.wait_s() == 0
        guard.take()
    wait_s = guard.wait_s()
    assert wait_s == pytest.approx(5.0)
    clock.advance(wait_s + 0.001)
    assert guard.wait_s() == 0
    guard.take()
    assert guard.wait_s() > 4
