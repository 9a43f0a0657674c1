"""Moves between tiers through the digest runner, with a background that is moved by hand."""

from __future__ import annotations

from functools import partial

import pytest

from cache_store.clock import ManualClock
from cache_store.tokens import pack
from cache_store.transfers import Moves, TransferResult
from tests.support.engines import sampling
from tests.support.manual_transfers import Fate, ManualMaker, always
from tests.support.simulated_transfers import SimulatedTransfers
from tests.support.transfer_plans import block_name, load, moving, spill, store
from worker.digest_rule import expected_output
from worker.digest_runner import INSTANT, DigestRunner, Durations, digest_model
from worker.step_plan import Draw, Row, RowFailure, SequenceId, SlotCopy, SlotRef, StepPlan

PROMPT = list(range(20, 28))


class Bench:
    """A digest runner whose blocks 0 and 1 hold `PROMPT`, in two groups."""

    def __init__(self) -> None:
        self.maker = ManualMaker(num_disk_blocks=4)
        info = digest_model(block_size=4, window=6)
        self.runner = DigestRunner(info, 8, INSTANT, ManualClock().advance, 4, self.maker)
        self.manual = self.maker.transfers
        self.token(PROMPT, 0, (0, 1))

    def token(self, tokens: list[int], start: int, table: tuple[int, ...]) -> int | str:
        draw = Draw(0, start + len(tokens), 0.0, 1.0, 0, 7, ())
        row = Row(SequenceId(0), tuple(tokens), start, (table, table), (draw,))
        outcome = self.runner.run(StepPlan((row,), (), (), ())).outcomes[0]
        return outcome.reason if isinstance(outcome, RowFailure) else outcome[0]

    def next_token(self, table: tuple[int, ...]) -> int | str:
        """After `PROMPT`, which is read through `table`, and 9."""
        return self.token([9], 8, (*table, 7))

    @property
    def right(self) -> int:
        info = self.runner.info
        return expected_output(info.geometry, info.vocab_size, pack([*PROMPT, 9]), sampling(1), 1)[0].token_ids[0]

    def store_and_scrub(self) -> None:
        """To host slots 2 and 3, and away from the device, in one plan."""
        scrubs = tuple(SlotRef(group, slot) for group in (0, 1) for slot in (0, 1))
        self.runner.run(moving(Moves(stores=(store(2, 0, 0), store(3, 1, 1))), scrubs=scrubs))


def results(bench: Bench) -> list[tuple[int, bool]]:
    return [(result.id, result.ok) for result in bench.runner.transfers.finished()]


def test_blocks_come_back_from_the_host_as_they_were() -> None:
    bench = Bench()
    bench.store_and_scrub()
    assert isinstance(bench.next_token((0, 1)), str)
    bench.runner.run(moving(Moves(), load(1, 2, 4, 4), load(2, 3, 5, 5)))
    assert results(bench) == []
    assert bench.next_token((4, 5)) not in (bench.right, "a slot was read that holds nothing")
    bench.manual.end_all()
    assert results(bench) == [(1, True), (2, True)]
    assert bench.next_token((4, 5)) == bench.right


def test_blocks_come_back_from_disk_as_they_were() -> None:
    bench = Bench()
    bench.manual.decide = always
    bench.store_and_scrub()
    names = block_name(1), block_name(2)
    spills = (spill(1, 2, names[0]), spill(2, 3, names[1]))
    bench.runner.run(moving(Moves(spills=spills, host_scrubs=(2, 3))))
    assert results(bench) == [(1, True), (2, True)]
    bench.runner.run(moving(Moves(), load(3, None, 4, 4, name=names[0]), load(4, None, 5, 5, name=names[1])))
    assert results(bench) == [(3, True), (4, True)]
    assert bench.next_token((4, 5)) == bench.right


def test_a_host_slot_is_stored_to_after_it_was_read_for_the_disk() -> None:
    bench = Bench()
    bench.manual.decide = always
    bench.runner.run(moving(Moves(stores=(store(0, 0, 0),))))
    first, second = block_name(1), block_name(2)
    bench.runner.run(moving(Moves(spills=(spill(1, 0, first),), stores=(store(0, 1, 1),))))
    bench.runner.run(moving(Moves(spills=(spill(2, 0, second),))))
    bench.runner.run(moving(Moves(), load(3, None, 4, 4, name=first), load(4, None, 5, 5, name=second)))
    assert [ok for _, ok in results(bench)] == [True] * 4
    assert bench.next_token((4, 5)) == bench.right


@pytest.mark.parametrize("fate", [Fate.FAIL, Fate.TEAR])
def test_a_load_that_goes_wrong_says_so_and_leaves_garbage(fate: Fate) -> None:
    bench = Bench()
    bench.store_and_scrub()
    bench.runner.run(moving(Moves(), load(1, 2, 4, 4), load(2, 3, 5, 5)))
    bench.manual.end(bench.manual.pending[0])
    bench.manual.end(bench.manual.pending[0], fate)
    assert results(bench) == [(1, True), (2, False)]
    assert bench.next_token((4, 5)) != bench.right


def test_a_torn_write_shows_when_it_is_read() -> None:
    bench = Bench()
    bench.store_and_scrub()
    bench.runner.run(moving(Moves(spills=(spill(1, 2), spill(2, 3)))))
    first, second = bench.manual.pending
    bench.manual.end(second)
    bench.manual.end(first, Fate.TEAR)
    assert results(bench) == [(2, True), (1, True)]
    loads = load(3, None, 4, 4, name=block_name(1)), load(4, None, 5, 5, name=block_name(2))
    bench.runner.run(moving(Moves(), *loads))
    bench.manual.end_all()
    assert results(bench) == [(3, False), (4, True)]


@pytest.mark.parametrize("moves", [Moves(forgotten=(block_name(1),)), Moves(forgotten_domains=(block_name(1).root,))])
def test_what_is_forgotten_does_not_come_back(moves: Moves) -> None:
    bench = Bench()
    bench.store_and_scrub()
    other = block_name(2, domain=1)
    bench.runner.run(moving(Moves(spills=(spill(1, 2, block_name(1)), spill(2, 3, other)))))
    bench.runner.run(moving(moves))
    bench.manual.end_all()
    assert set(bench.manual.disk) == {other}
    bench.runner.run(moving(Moves(spills=(spill(3, 2, block_name(1)),))))
    bench.manual.end_all()
    bench.runner.run(moving(moves))
    assert set(bench.manual.disk) == {other}


def test_a_step_that_raises_reports_what_it_was_to_move_once() -> None:
    bench = Bench()
    bench.store_and_scrub()
    bench.manual.fail_moves = OSError("injected")
    plan = moving(Moves(spills=(spill(1, 2),)), load(2, 3, 4, 4))
    with pytest.raises(OSError, match="injected"):
        bench.runner.run(plan)
    assert results(bench) == [(2, False)]
    bench.manual.end_all()
    assert results(bench) == [(1, True)]
    clashing = moving(Moves(spills=(spill(3, 2),)), load(4, 3, 4, 4), load(5, 3, 4, 4))
    with pytest.raises(AssertionError, match="two loads"):
        bench.runner.run(clashing)
    assert results(bench) == [(3, False), (4, False), (5, False)]
    assert results(bench) == []


def test_a_wake_comes_with_each_end_and_close_ends_the_rest() -> None:
    bench = Bench()
    wakes: list[int] = []
    bench.runner.transfers.notify(lambda: wakes.append(1))
    bench.store_and_scrub()
    bench.runner.run(moving(Moves(spills=(spill(1, 2),)), load(2, 3, 4, 4)))
    bench.manual.end(bench.manual.pending[0])
    assert len(wakes) == 1
    bench.runner.transfers.close()
    bench.runner.transfers.close()
    assert bench.runner.transfers.finished() == (TransferResult(1, True, 0.0), TransferResult(2, False, 0.0))
    assert not bench.manual.disk


def test_a_slot_that_a_load_reads_is_not_overwritten() -> None:
    bench = Bench()
    bench.store_and_scrub()
    bench.runner.run(moving(Moves(), load(1, 2, 4, 4)))
    with pytest.raises(AssertionError, match="while a load reads it"):
        bench.runner.run(moving(Moves(stores=(store(2, 0, 0),))))


def test_simulated_loads_end_one_after_the_other_on_the_clock() -> None:
    clock = ManualClock(start_s=0.0)
    durations = Durations(0.0, 0.0, load_block_s=0.5, disk_block_s=2.0)
    make_mover = partial(SimulatedTransfers, clock=clock, durations=durations, num_disk_blocks=1)
    runner = DigestRunner(digest_model(block_size=4), 8, durations, clock.advance, 4, make_mover)
    transfers = runner.transfers
    assert isinstance(transfers, SimulatedTransfers)
    runner.run(moving(Moves(spills=(spill(1, 0),))))
    assert transfers.finished() == (TransferResult(1, True, 0.0),)
    runner.run(moving(Moves(), load(2, 1, 4), load(3, None, 5, name=block_name(1)), load(4, 1, 6)))
    ends: list[tuple[float, TransferResult]] = []
    while (due_s := transfers.next_due_s) is not None:
        clock.advance(due_s - clock.monotonic_s())
        ends += [(due_s, result) for result in transfers.finished()]
    assert ends == [
        (0.5, TransferResult(2, True, 0.5)),
        (2.5, TransferResult(3, True, 2.0)),
        (3.0, TransferResult(4, True, 0.5)),
    ]


ROW = Row(SequenceId(0), (1,), 0, ((4,), (4,)), ())
BAD: dict[str, StepPlan] = {
    "gets two blocks": moving(Moves(stores=(store(1, 0, 0), store(1, 1, 1)))),
    "to disk twice": moving(Moves(spills=(spill(1, 1), spill(2, 1)))),
    "host slot outside": moving(Moves(stores=(store(4, 0, 0),))),
    "host slot outside the pool": moving(Moves(), load(1, 4, 0, 0)),
    "slot outside the pool": moving(Moves(stores=(store(0, 0, 8),))),
    "one slot per group": moving(Moves(), load(1, 0, 0)),
    "one id": moving(Moves(spills=(spill(1, 1),)), load(1, 0, 0, 0)),
    "step that overwrites it": moving(Moves(stores=(store(1, 0, 0),)), load(1, 1, 4, 4)),
    "target of two loads": moving(Moves(), load(1, 0, 4, 4), load(2, 1, 5, 4)),
    "only being loaded": StepPlan((ROW,), (), (), (), Moves(), (load(1, 0, 4, 5),)),
    "is copied that": StepPlan((), (), (SlotCopy(1, 2, 5, 3),), (), Moves(), (load(1, 0, 4, 5),)),
    "not named by its tokens": moving(Moves(), load(1, 0, 4, 4, name=block_name(1, block_size=3))),
}


@pytest.mark.parametrize("words", BAD)
def test_a_plan_whose_moves_contradict_themselves_is_refused(words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        Bench().runner.run(BAD[words])


def test_a_runner_without_lower_tiers_moves_nothing() -> None:
    runner = DigestRunner(digest_model(block_size=4), 8, INSTANT, ManualClock().advance)
    assert runner.transfers.num_host_blocks == runner.transfers.num_disk_blocks == 0
    runner.run(moving())
    with pytest.raises(AssertionError, match="outside the pool"):
        runner.run(moving(Moves(stores=(store(0, 0),))))
    assert runner.transfers.finished() == ()
