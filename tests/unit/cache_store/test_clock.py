"""A clock that does not follow a wall clock that is set."""

from __future__ import annotations

from cache_store.clock import ManualClock, SteadyClock


class SetClock(ManualClock):
    """Somebody sets its time of day."""

    ahead_s = 0.0

    def unix_s(self) -> float:
        return super().unix_s() + self.ahead_s


def test_a_steady_clock_goes_on_from_where_it_began() -> None:
    wall = SetClock()
    wall.ahead_s = 7_000.0
    steady = SteadyClock(wall)
    began_s = wall.unix_s()
    for ahead_s in (0.0, -90_000.0, 90_000.0):
        wall.ahead_s = ahead_s
        wall.advance(2.0)
    assert steady.unix_s() == began_s + 6.0
    assert steady.monotonic_s() == wall.monotonic_s()
