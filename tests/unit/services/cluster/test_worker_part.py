"""A worker as a part: what the placement mends by itself, and what counts as failed."""

from __future__ import annotations

import pytest

from cache_store.clock import ManualClock
from services.cluster.parts import Health
from services.cluster.worker_part import COMEBACK_S, Placed, PlacedState, WorkerPart, WorkerSpec
from tests.support.worker_records import worker_record

SPEC = WorkerSpec("worker-0", (), {}, num_cpus=1, num_gpus=0)
STARTING = Placed(PlacedState.STARTING, None, "process died")
READY = Placed(PlacedState.READY, worker_record("worker-0"), "")
DEAD = Placed(PlacedState.DEAD, None, "no such model folder")


class ScriptedPlacement:
    """A placement that says what the test wants."""

    def __init__(self) -> None:
        self.placed = STARTING
        self.calls: list[str] = []

    def create(self, spec: WorkerSpec) -> None:
        self.calls.append(f"create {spec.worker_id}")

    def look(self, worker_id: str) -> Placed:
        assert worker_id == SPEC.worker_id
        return self.placed

    def stop(self, worker_id: str, drain_s: float) -> None:
        self.calls.append(f"stop {worker_id}")


@pytest.fixture
def placement() -> ScriptedPlacement:
    return ScriptedPlacement()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def part(placement: ScriptedPlacement, clock: ManualClock) -> WorkerPart:
    part = WorkerPart(SPEC, placement, clock)
    part.start()
    return part


def test_it_is_starting_until_it_answers(part: WorkerPart, placement: ScriptedPlacement) -> None:
    assert part.condition().health is Health.STARTING
    assert part.record is None
    placement.placed = READY
    assert part.condition().health is Health.READY
    assert part.record == READY.record


def test_a_crash_is_left_to_the_placement_for_a_while(
    part: WorkerPart, placement: ScriptedPlacement, clock: ManualClock
) -> None:
    placement.placed = READY
    part.condition()
    placement.placed = STARTING
    clock.advance(COMEBACK_S - 1)
    assert part.condition().health is Health.READY
    clock.advance(1)
    assert part.condition().health is Health.FAILED
    assert "process died" in part.condition().reason


def test_each_answer_begins_the_while_anew(part: WorkerPart, placement: ScriptedPlacement, clock: ManualClock) -> None:
    for _ in range(3):
        placement.placed = READY
        part.condition()
        clock.advance(COMEBACK_S - 1)
        placement.placed = STARTING
        assert part.condition().health is Health.READY


def test_a_worker_that_was_given_up_failed_with_its_reason(part: WorkerPart, placement: ScriptedPlacement) -> None:
    placement.placed = DEAD
    assert part.condition().health is Health.FAILED
    assert part.condition().reason == "no such model folder"


def test_a_second_start_waits_for_the_first_answer_again(
    part: WorkerPart, placement: ScriptedPlacement, clock: ManualClock
) -> None:
    placement.placed = READY
    part.condition()
    part.stop()
    placement.placed = STARTING
    part.start()
    assert part.condition().health is Health.STARTING
    assert placement.calls == ["create worker-0", "stop worker-0", "create worker-0"]


def test_one_that_was_told_to_leave_has_not_failed(part: WorkerPart, placement: ScriptedPlacement) -> None:
    placement.placed = READY
    assert part.condition().health is Health.READY
    placement.placed = Placed(PlacedState.LEFT, None, "exit_actor() is called.")
    assert part.condition().health is Health.LEFT
