"""Transfers in the background: each is reported once, whatever happens to it, and nobody waits for another's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.block_files import BlockFiles
from cache_store.clock import SystemClock
from cache_store.transfers import Load, Moves, TransferResult
from tests.support.memory_disk import WAIT_S, MemoryDisk
from tests.support.transfer_plans import block_name, load, moving, spill, store
from worker.block_copier import ArrayCopier
from worker.step_plan import StepPlan
from worker.transfers import BackgroundError, BackgroundTransfers, DiskTier

NUM_BLOCKS, NUM_HOST_BLOCKS, BLOCK_BYTES, NUM_STAGED = 8, 4, 64, 3


class Bench:
    """Transfers over eight device blocks that hold their number, four host slots and a disk in memory."""

    def __init__(self, disk: DiskTier | None = None) -> None:
        self.device = np.repeat(np.arange(NUM_BLOCKS, dtype=np.uint8), BLOCK_BYTES).reshape(NUM_BLOCKS, BLOCK_BYTES)
        self.copier = ArrayCopier([self.device], NUM_HOST_BLOCKS, np.full(BLOCK_BYTES, 0xFF, dtype=np.uint8))
        self.disk = MemoryDisk()
        tier = disk or DiskTier(self.disk, 8, self.disk.close)
        self.transfers = BackgroundTransfers(
            self.copier, tier, SystemClock(), staging_bytes=NUM_STAGED * BLOCK_BYTES, turn_bytes=BLOCK_BYTES
        )

    def run(self, plan: StepPlan) -> None:
        """As a runner does."""
        try:
            self.transfers.move(plan.moves)
            self.transfers.load(plan.loads)
        except BaseException:
            self.transfers.give_up(plan)
            raise

    def results(self, num: int) -> list[TransferResult]:
        """That many, and no more."""
        found: list[TransferResult] = []

        def take() -> bool:
            found.extend(self.transfers.finished())
            return len(found) >= num

        wait_for(take)
        assert len(found) == num
        return found

    def outcomes(self, num: int) -> dict[int, bool]:
        return {result.id: result.ok for result in self.results(num)}

    def holds(self, *slots: int) -> list[int]:
        """What device blocks hold; each of them one number throughout."""
        assert all(len(set(self.device[slot])) == 1 for slot in slots)
        return [int(self.device[slot, 0]) for slot in slots]


def wait_for(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up_s, "it does not happen"
        time.sleep(0.001)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.disk.go_on()
    made.transfers.close()


def test_a_block_goes_down_to_the_disk_and_comes_back(bench: Bench) -> None:
    bench.run(moving(Moves(stores=(store(0, 1), store(1, 2)))))
    bench.run(moving(Moves(spills=(spill(1, 0),), host_scrubs=(0,)), load(2, 1, 6)))
    assert bench.outcomes(2) == {1: True, 2: True}
    bench.run(moving(Moves(), load(3, None, 7, name=block_name(1))))
    assert bench.outcomes(1) == {3: True}
    assert bench.holds(6, 7) == [2, 1]
    assert set(bench.copier.host[0]) == {0xFF}


def test_real_files_do_the_same(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path / "blocks", BLOCK_BYTES, 8)
    bench = Bench(DiskTier(files, 8, files.close))
    bench.run(moving(Moves(stores=(store(0, 1), store(1, 2)))))
    bench.run(moving(Moves(spills=(spill(1, 0), spill(2, 1)))))
    assert bench.outcomes(2) == {1: True, 2: True}
    bench.run(moving(Moves(forgotten=(block_name(2),)), load(3, None, 7, name=block_name(1))))
    assert bench.outcomes(1) == {3: True}
    wait_for(lambda: files.num_files == 1)
    bench.run(moving(Moves(), load(4, None, 6, name=block_name(2))))
    assert bench.outcomes(1) == {4: False}
    assert bench.holds(7) == [1]
    bench.transfers.close()
    assert not (tmp_path / "blocks").exists()


def test_the_host_slot_of_a_spill_is_free_at_once(bench: Bench) -> None:
    bench.disk.hold()
    bench.run(moving(Moves(stores=(store(0, 1),))))
    bench.run(moving(Moves(spills=(spill(1, 0),), stores=(store(0, 2),))))
    bench.disk.go_on()
    assert bench.outcomes(1) == {1: True}
    assert bench.disk.blocks[block_name(1)] == bytes([1]) * BLOCK_BYTES


def test_what_finds_no_room_in_the_staging_buffer_fails_at_once(bench: Bench) -> None:
    bench.disk.hold()
    bench.run(moving(Moves(spills=tuple(spill(number, number) for number in range(4)))))
    assert bench.outcomes(1) == {3: False}
    bench.disk.go_on()
    assert bench.outcomes(3) == {0: True, 1: True, 2: True}
    bench.run(moving(Moves(spills=(spill(9, 0),))))
    assert bench.outcomes(1) == {9: True}


def test_a_write_does_not_hold_up_a_load(bench: Bench) -> None:
    bench.run(moving(Moves(stores=(store(0, 1),))))
    bench.disk.hold()
    bench.run(moving(Moves(spills=(spill(1, 0),)), load(2, 0, 6)))
    assert bench.outcomes(1) == {2: True}


def test_tenants_take_turns(bench: Bench) -> None:
    names = {domain: [block_name(number, domain) for number in range(3)] for domain in (1, 2)}
    bench.disk.hold()
    loads: list[Load] = [load(10 + i, None, i, name=name) for i, name in enumerate(names[1])]
    bench.run(moving(Moves(), *loads))
    wait_for(lambda: len(bench.disk.calls) == 1)
    others = [load(20 + i, None, 4 + i, name=name, tenant="globex") for i, name in enumerate(names[2])]
    bench.run(moving(Moves(), *others))
    bench.disk.go_on()
    bench.results(6)
    asked = [name for _, name in bench.disk.calls]
    assert asked == [names[1][0], names[1][1], names[2][0], names[1][2], names[2][1], names[2][2]]


@pytest.mark.parametrize("error", [OSError("no space"), ConnectionResetError()])
def test_what_a_disk_does_wrong_is_a_failed_transfer(bench: Bench, error: OSError) -> None:
    bench.disk.error = error
    bench.run(moving(Moves(spills=(spill(1, 0),)), load(2, None, 7, name=block_name(5))))
    assert bench.outcomes(2) == {1: False, 2: False}
    bench.disk.error = None
    bench.run(moving(Moves(spills=(spill(3, 0),)), load(4, None, 7, name=block_name(5))))
    assert bench.outcomes(2) == {3: True, 4: False}


@pytest.mark.parametrize("plan", [moving(Moves(spills=(spill(1, 0),))), moving(Moves(), load(1, None, 7))])
def test_a_thread_that_dies_shows(bench: Bench, plan: StepPlan) -> None:
    woken = threading.Event()
    bench.transfers.notify(woken.set)
    bench.disk.error = ZeroDivisionError()
    bench.run(plan)
    assert woken.wait(WAIT_S)
    with pytest.raises(BackgroundError):
        bench.transfers.finished()
    with pytest.raises(BackgroundError):
        bench.run(moving(Moves(), load(2, 0, 6)))


def test_one_wake_until_results_are_taken(bench: Bench) -> None:
    wakes: list[int] = []
    bench.transfers.notify(lambda: wakes.append(1))
    bench.run(moving(Moves(), *(load(number, 0, number) for number in range(3))))
    wait_for(lambda: len(wakes) == 1)
    bench.results(3)
    bench.run(moving(Moves(), load(3, 0, 3)))
    bench.results(1)
    assert 2 <= len(wakes) <= 4


def test_what_is_forgotten_makes_room_before_the_spills_of_its_plan(bench: Bench) -> None:
    old, new = block_name(1), block_name(2)
    bench.disk.blocks[old] = b"old"
    bench.run(moving(Moves(spills=(spill(1, 0, new),), forgotten=(old,))))
    bench.results(1)
    assert bench.disk.calls == [("remove", old), ("write", new)]


def test_a_block_that_is_forgotten_and_spilled_anew_by_one_plan_stays_and_one_of_a_dropped_domain_does_not(
    bench: Bench,
) -> None:
    first, second = block_name(1, domain=1), block_name(2, domain=2)
    plan = moving(
        Moves(spills=(spill(1, 0, first), spill(2, 1, second)), forgotten=(first,), forgotten_domains=(second.root,))
    )
    bench.run(plan)
    assert bench.outcomes(2)[1]
    wait_for(lambda: bench.disk.calls[0] == ("remove", first) and set(bench.disk.blocks) == {first})


def test_a_block_that_is_forgotten_goes_also_where_its_new_spill_finds_no_room(bench: Bench) -> None:
    name = block_name(1)
    bench.disk.blocks[name] = b"old"
    bench.disk.hold()
    others = tuple(spill(number, 0, block_name(number)) for number in range(10, 10 + NUM_STAGED + 2))
    bench.run(moving(Moves(spills=others)))
    bench.run(moving(Moves(spills=(spill(1, 0, name),), forgotten=(name,))))
    bench.disk.go_on()
    assert bench.outcomes(NUM_STAGED + 3)[1] is False
    wait_for(lambda: name not in bench.disk.blocks)


def test_a_domain_that_is_dropped_does_not_wait_for_the_disk(bench: Bench) -> None:
    names = [block_name(number, domain=1) for number in range(2)]
    other = block_name(2, domain=2)
    bench.disk.hold()
    bench.run(moving(Moves(spills=(spill(0, 0, names[0]), spill(1, 1, names[1]), spill(2, 2, other)))))
    wait_for(lambda: len(bench.disk.calls) == 1)
    bench.run(moving(Moves(forgotten_domains=(names[0].root,))))
    assert bench.disk.dropped == [names[0].root]
    assert bench.outcomes(1) == {1: False}
    bench.disk.go_on()
    assert bench.outcomes(2) == {0: False, 2: True}
    assert set(bench.disk.blocks) == {other}


def test_a_plan_that_was_not_begun_ends_as_failed_but_forgets(bench: Bench) -> None:
    name = block_name(1)
    bench.disk.blocks[name] = b"old"
    plan = moving(Moves(spills=(spill(1, 0),), forgotten=(name,)), load(2, 0, 6))
    bench.transfers.give_up(plan)
    assert bench.outcomes(2) == {1: False, 2: False}
    wait_for(lambda: not bench.disk.blocks)


def test_what_was_begun_before_a_step_raised_is_reported_once(bench: Bench) -> None:
    bench.run(moving(Moves(stores=(store(0, 1),))))
    plan = moving(Moves(spills=(spill(1, 0),)), load(2, 0, 6))
    bench.run(plan)
    bench.transfers.give_up(plan)
    assert bench.outcomes(2) == {1: True, 2: True}


def test_the_end_reports_what_had_not_ended_and_wipes_the_disk(bench: Bench) -> None:
    bench.disk.hold()
    spills = tuple(spill(number, number) for number in range(3))
    bench.run(moving(Moves(spills=spills), load(5, None, 7, name=block_name(5)), load(6, 0, 6)))
    wait_for(lambda: len(bench.disk.calls) == 2)
    closing = threading.Thread(target=bench.transfers.close)
    closing.start()
    assert bench.transfers._closing.wait(WAIT_S)  # what is held goes on after that, not before
    bench.disk.go_on()
    closing.join()
    outcomes = bench.outcomes(5)
    assert outcomes.keys() == {0, 1, 2, 5, 6}
    assert [outcomes[number] for number in (1, 2, 6)] == [False] * 3
    assert bench.disk.is_closed
    bench.run(moving(Moves(spills=(spill(7, 0),), stores=(store(1, 2),)), load(8, 0, 6)))
    assert bench.outcomes(2) == {7: False, 8: False}
    bench.transfers.close()


def test_threads_end_with_the_transfers() -> None:
    before = threading.active_count()
    bench = Bench()
    assert threading.active_count() == before + 2
    bench.transfers.close()
    assert threading.active_count() == before


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans(), st.booleans()), max_size=12))
def test_every_transfer_is_reported_exactly_once(steps: list[tuple[int, int, bool, bool]]) -> None:
    bench = Bench()
    numbers = iter(range(1_000))
    expected: set[int] = set()
    told: list[int] = []
    for num_spills, num_loads, from_disk, raises in steps:
        spills = tuple(spill(next(numbers), slot) for slot in range(num_spills))
        loads = [load(next(numbers), None if from_disk else 3, slot) for slot in range(num_loads)]
        expected |= {each.id for each in (*spills, *loads)}
        plan = moving(Moves(spills=spills), *loads)
        if raises:
            bench.transfers.move(plan.moves)
            bench.transfers.give_up(plan)
        else:
            bench.run(plan)
        told += [result.id for result in bench.transfers.finished()]
    bench.transfers.close()
    told += [result.id for result in bench.transfers.finished()]
    assert sorted(told) == sorted(expected)


def test_where_the_disk_is_slow_the_tenant_with_most_on_its_way_gives_way(bench: Bench) -> None:
    bench.disk.hold()
    flood = tuple(spill(number, 0, block_name(number), "globex") for number in range(NUM_STAGED + 2))
    bench.run(moving(Moves(spills=flood)))
    bench.run(moving(Moves(spills=tuple(spill(number, 1, block_name(number)) for number in range(50, 52)))))
    bench.disk.go_on()
    outcomes = bench.outcomes(NUM_STAGED + 4)
    assert outcomes[50], "acme had none on the way"
    assert not all(outcomes[number] for number in range(NUM_STAGED)), "globex had most"


def test_a_firm_write_takes_the_place_of_any_other_and_its_own_place_is_nobodys(bench: Bench) -> None:
    bench.disk.hold()
    bench.run(moving(Moves(spills=tuple(spill(number, 0, block_name(number), "globex") for number in range(3)))))
    firm = range(50, 50 + NUM_STAGED - 1)
    bench.run(moving(Moves(spills=tuple(spill(number, 1, block_name(number), is_firm=True) for number in firm))))
    bench.run(moving(Moves(spills=tuple(spill(number, 0, block_name(number), "globex") for number in range(70, 75)))))
    bench.disk.go_on()
    outcomes = bench.outcomes(3 + len(firm) + 5)
    assert all(outcomes[number] for number in firm)
