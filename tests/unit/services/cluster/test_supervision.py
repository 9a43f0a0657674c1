"""Order of start and stop, restarts, failures: without processes, on a clock that stands still."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cache_store.clock import ManualClock
from cache_store.errors import PreconditionError
from services.cluster.parts import Health
from services.cluster.supervision import PartState, RestartPolicy, Supervisor, Transition
from tests.support.scripted_part import ScriptedPart

POLICY = RestartPolicy(first_pause_s=1.0, longest_pause_s=4.0, steady_after_s=30.0, start_timeout_s=60.0)


@dataclass
class System:
    """Two stages: redis, then a worker and a router."""

    journal: list[str] = field(default_factory=list)
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.redis = ScriptedPart("redis", self.journal)
        self.worker = ScriptedPart("worker-0", self.journal)
        self.router = ScriptedPart("router", self.journal)
        self.supervisor = Supervisor([[self.redis], [self.worker, self.router]], self.clock, POLICY)

    def bring_up(self) -> None:
        for part in (self.redis, self.worker, self.router):
            part.become(Health.READY)
        while not self.supervisor.complete:
            self.supervisor.tick()
        self.journal.clear()

    def stop(self) -> list[Transition]:
        transitions: list[Transition] = []
        self.supervisor.stop(transitions.append)
        return transitions


@pytest.fixture
def system() -> System:
    return System()


def test_a_stage_waits_for_the_one_before(system: System) -> None:
    for _ in range(3):
        system.supervisor.tick()
    assert system.journal == ["start redis"]
    system.redis.become(Health.READY)
    system.supervisor.tick()
    assert system.journal == ["start redis", "start worker-0", "start router"]


def test_parts_of_a_stage_start_side_by_side(system: System) -> None:
    system.redis.become(Health.READY)
    for _ in range(3):
        system.supervisor.tick()
    assert system.supervisor.states() == {
        "redis": PartState.READY,
        "worker-0": PartState.STARTING,
        "router": PartState.STARTING,
    }
    assert not system.supervisor.complete


def test_complete_when_all_are_ready(system: System) -> None:
    system.bring_up()
    assert set(system.supervisor.states().values()) == {PartState.READY}


def test_a_failure_before_completion_ends_the_start_with_its_reason(system: System) -> None:
    system.supervisor.tick()
    system.redis.become(Health.FAILED, "the port is taken")
    with pytest.raises(PreconditionError, match="redis did not start: the port is taken"):
        system.supervisor.tick()


def test_an_error_of_start_itself_ends_the_start(system: System) -> None:
    system.redis.start_error = "no binary"
    with pytest.raises(PreconditionError, match="redis did not start: no binary"):
        system.supervisor.tick()


def test_a_start_that_takes_too_long_has_failed(system: System) -> None:
    system.supervisor.tick()
    system.clock.advance(60.1)
    with pytest.raises(PreconditionError, match="not ready after 60 s"):
        system.supervisor.tick()


def test_a_part_that_fails_later_is_started_again_after_a_pause(system: System) -> None:
    system.bring_up()
    system.router.become(Health.FAILED, "signal 9")
    assert system.supervisor.tick() == [Transition("router", PartState.PAUSED, "signal 9")]
    assert system.journal == ["stop router"]
    system.supervisor.tick()
    assert system.journal == ["stop router"]
    system.clock.advance(1.0)
    system.supervisor.tick()
    assert system.journal == ["stop router", "start router"]
    system.router.become(Health.READY)
    assert system.supervisor.tick() == [Transition("router", PartState.READY)]


def test_other_parts_are_left_alone_by_a_restart(system: System) -> None:
    system.bring_up()
    system.redis.become(Health.FAILED, "killed")
    system.supervisor.tick()
    system.clock.advance(1.0)
    system.supervisor.tick()
    assert system.journal == ["stop redis", "start redis"]


def test_a_part_waits_with_its_restart_for_what_it_rests_on(system: System) -> None:
    system.bring_up()
    system.redis.become(Health.FAILED, "killed")
    system.worker.become(Health.FAILED, "lost its redis")
    system.supervisor.tick()
    system.redis.start_error = "not yet"
    system.clock.advance(1.0)
    system.supervisor.tick()
    assert "start worker-0" not in system.journal
    system.redis.start_error = ""
    system.redis.become(Health.READY)
    system.clock.advance(2.0)
    for _ in range(2):
        system.supervisor.tick()
    assert system.journal[-1] == "start worker-0"


def _pauses(system: System, num_failures: int) -> list[float]:
    pauses = []
    for _ in range(num_failures):
        system.supervisor.tick()
        waited = 0.0
        while system.supervisor.states()["router"] is PartState.PAUSED:
            system.clock.advance(0.5)
            waited += 0.5
            system.supervisor.tick()
        pauses.append(waited)
    return pauses


def test_pauses_double_up_to_a_bound(system: System) -> None:
    system.bring_up()
    system.router.become(Health.FAILED, "again")
    assert _pauses(system, 5) == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_a_steady_part_begins_again_with_the_first_pause(system: System) -> None:
    system.bring_up()
    system.router.become(Health.FAILED, "again")
    assert _pauses(system, 2) == [1.0, 2.0]
    system.router.become(Health.READY)
    system.supervisor.tick()
    system.clock.advance(30.0)
    system.router.become(Health.FAILED, "much later")
    assert _pauses(system, 1) == [1.0]


def test_an_unsteady_part_does_not(system: System) -> None:
    system.bring_up()
    system.router.become(Health.FAILED, "again")
    assert _pauses(system, 2) == [1.0, 2.0]
    system.router.become(Health.READY)
    system.supervisor.tick()
    system.router.become(Health.FAILED, "at once")
    assert _pauses(system, 1) == [4.0]


def test_a_restart_that_fails_is_tried_again(system: System) -> None:
    system.bring_up()
    system.router.become(Health.FAILED, "x")
    system.supervisor.tick()
    system.router.start_error = "out of processes"
    system.clock.advance(1.0)
    assert system.supervisor.tick() == [Transition("router", PartState.PAUSED, "out of processes")]


def test_what_is_left_of_a_failed_part_that_cannot_be_stopped_is_told(system: System) -> None:
    system.bring_up()
    system.router.become(Health.FAILED, "hung")
    system.router.stop_error = "still there"
    (change,) = system.supervisor.tick()
    assert change.reason == "hung; did not stop cleanly: still there"


def test_stop_goes_backwards_and_goes_on_after_an_error(system: System) -> None:
    system.bring_up()
    system.router.stop_error = "hangs"
    transitions = system.stop()
    assert system.journal == ["stop router", "stop worker-0", "stop redis"]
    assert [each.part for each in transitions] == ["router", "worker-0", "redis"]
    assert transitions[0].reason == "did not stop cleanly: hangs"


def test_stop_during_a_start_leaves_out_what_never_ran(system: System) -> None:
    system.supervisor.tick()
    system.stop()
    assert system.journal == ["start redis", "stop redis"]


def test_stop_twice_stops_once(system: System) -> None:
    system.bring_up()
    system.stop()
    assert system.stop() == []


def test_a_paused_part_is_stopped_too(system: System) -> None:
    system.bring_up()
    system.worker.become(Health.FAILED, "x")
    system.supervisor.tick()
    system.journal.clear()
    system.stop()
    assert "stop worker-0" in system.journal


def test_a_part_that_left_is_not_started_again(system: System) -> None:
    system.bring_up()
    system.worker.become(Health.LEFT, "drained")
    (transition,) = system.supervisor.tick()
    assert transition == Transition("worker-0", PartState.LEFT, "drained")
    system.clock.advance(1_000.0)
    assert system.supervisor.tick() == []
    assert system.journal == ["stop worker-0"], "it was started again, or not tidied up after"
    assert [each.part for each in system.stop()] == ["router", "redis"], "it was stopped twice"


def test_nothing_waits_for_a_part_that_left(system: System) -> None:
    """Also where it left before all were ready, and where an earlier stage fails later."""
    for part in (system.redis, system.worker):
        part.become(Health.READY)
    system.supervisor.tick()
    system.supervisor.tick()
    system.worker.become(Health.LEFT, "drained")
    system.router.become(Health.READY)
    system.supervisor.tick()
    assert system.supervisor.complete
    system.redis.become(Health.FAILED, "the server ended")
    system.router.become(Health.FAILED, "no redis")
    system.supervisor.tick()
    system.redis.become(Health.READY)
    system.router.become(Health.READY)
    for _ in range(4):
        system.clock.advance(2.0)
        system.supervisor.tick()
    assert system.supervisor.states() == {
        "redis": PartState.READY,
        "worker-0": PartState.LEFT,
        "router": PartState.READY,
    }
