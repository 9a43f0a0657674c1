"""What an operator is told of blocks is what sequences and pool have, and it is bounded."""

from __future__ import annotations

import numpy as np
import pytest

import worker.block_look as block_look
from cache_store.policies.choice import PolicyKind
from cache_store.tier_kind import TierKind
from tests.support.domains import make_domain
from tests.support.engines import ACME, Bench, sampling
from tests.support.manual_transfers import ManualMaker, always
from worker.block_look import BlockState, Look, Mark, SequenceState
from worker.engine_config import EngineConfig

GLOBEX = make_domain("globex")
PROMPT = range(100, 113)
"""Three blocks and a token."""


def look_at(bench: Bench) -> Look:
    """Checks the look against the engine's own tables on the way."""
    look = bench.engine.look.take()
    sequences = {(each.owner.key, each.samples): each for each in bench.engine.look._sequences.running}
    for each in look.sequences:
        if (sequence := sequences.get((each.key, each.samples))) is not None:
            table = sequence.tables[0]
            assert tuple(cell.number for cell in each.cells[: len(table)]) == table
            assert all(cell.marks & Mark.RESERVED for cell in each.cells[len(table) :])
    return look


def states(look: Look) -> list[BlockState]:
    return [BlockState(each) for each in look.pool.states]


def owner(look: Look, number: int) -> str:
    return look.pool.tenant_names[look.pool.tenants[number]]


def test_a_running_sequence_has_its_blocks_in_order() -> None:
    bench = Bench(num_blocks=16)
    bench.submit(PROMPT, sampling(max_tokens=20))
    bench.step()
    look = look_at(bench)
    (sequence,) = look.sequences
    assert (sequence.state, sequence.prompt_tokens, sequence.num_tokens) == (SequenceState.DECODE, 13, 14)
    assert [bool(cell.marks & Mark.COMMITTED) for cell in sequence.cells[:4]] == [True, True, True, False]
    for cell in sequence.cells[:3]:
        assert states(look)[cell.number] is BlockState.HELD
        assert owner(look, cell.number) == ACME.tenant
    assert states(look)[sequence.cells[3].number] is BlockState.WRITING
    assert states(look).count(BlockState.FREE) == 16 - len(sequence.cells)
    assert look.is_complete


def test_shared_and_reused_blocks_are_marked() -> None:
    bench = Bench(num_blocks=32)
    bench.submit(PROMPT, sampling(max_tokens=20))
    bench.step()
    bench.submit([*PROMPT[:8], 7, 8, 9], sampling(max_tokens=20))
    bench.step()
    look = look_at(bench)
    first, second = look.sequences
    assert [cell.number for cell in second.cells[:2]] == [cell.number for cell in first.cells[:2]]
    assert [cell.holders for cell in first.cells[:3]] == [2, 2, 1]
    assert [bool(cell.marks & Mark.REUSED) for cell in second.cells[:3]] == [True, True, False]
    assert not any(cell.marks & Mark.REUSED for cell in first.cells)
    assert states(look)[first.cells[0].number] is BlockState.SHARED


def test_a_copy_names_the_block_that_it_came_from() -> None:
    bench = Bench(num_blocks=32)
    bench.answer(PROMPT, sampling(max_tokens=4))
    bench.submit([*PROMPT[:6], 7, 8, 9], sampling(max_tokens=20))
    bench.step()
    look = look_at(bench)
    (sequence,) = look.sequences
    source = look.lines[0].cells[1].number
    assert [at for at, cell in enumerate(sequence.cells) if cell.marks & Mark.COPIED] == [1]
    assert sequence.copied_from == source
    assert source != sequence.cells[1].number


def test_blocks_are_cached_when_a_request_ends_and_gone_when_they_are_evicted() -> None:
    bench = Bench(num_blocks=8)
    bench.answer(PROMPT, sampling(max_tokens=4))
    before = look_at(bench)
    (line,) = before.lines
    assert before.sequences == ()
    assert len(line.cells) == 4
    assert [states(before)[cell.number] for cell in line.cells] == [BlockState.CACHED] * 4
    bench.answer(range(500, 530), sampling(max_tokens=1), domain=GLOBEX)
    after = look_at(bench)
    assert [each.tenant for each in after.lines] == [GLOBEX.tenant]
    generations = [np.frombuffer(look.pool.uids, np.uint16) for look in (before, after)]
    reused = [cell.number for cell in line.cells if states(after)[cell.number] is not BlockState.FREE]
    assert reused
    assert all(generations[0][number] != generations[1][number] for number in reused)
    assert all(owner(after, number) == GLOBEX.tenant for number in reused)


def test_a_line_goes_on_below_the_device() -> None:
    bench = Bench(
        num_blocks=8,
        num_host_blocks=16,
        make_mover=ManualMaker(decide=always),
        config=EngineConfig(eviction_policy=PolicyKind.LRU),
    )
    bench.answer(PROMPT, sampling(max_tokens=4))
    bench.answer(range(500, 521), sampling(max_tokens=1), domain=GLOBEX)
    look = look_at(bench)
    line = next(each for each in look.lines if each.tenant == ACME.tenant)
    tiers = [cell.tier for cell in line.cells]
    assert tiers == sorted(tiers)
    assert set(tiers) == {TierKind.DEVICE, TierKind.HOST}
    assert len(line.cells) == 4


def test_samples_share_their_prompt() -> None:
    bench = Bench(num_blocks=32)
    bench.submit(PROMPT, sampling(max_tokens=20), num_samples=2)
    bench.step()
    bench.step()
    first, second = look_at(bench).sequences
    assert (first.key, first.samples, second.samples) == (second.key, (0,), (1,))
    assert [cell.number for cell in first.cells[:3]] == [cell.number for cell in second.cells[:3]]
    assert second.copied_from == first.cells[3].number or first.copied_from == second.cells[3].number


def test_who_waits_holds_nothing() -> None:
    bench = Bench(num_blocks=8)
    bench.submit(range(20), sampling(max_tokens=8))
    bench.submit(range(200, 220), sampling(max_tokens=8))
    bench.step()
    running, waiting = look_at(bench).sequences
    assert (waiting.state, waiting.cells) == (SequenceState.QUEUED, ())
    assert running.cells


def test_a_look_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(num_blocks=64)
    for start in (0, 100, 200):
        bench.submit(range(start, start + 20), sampling(max_tokens=30))
    bench.step()
    assert look_at(bench).is_complete
    third = list(bench.requests)[2]
    monkeypatch.setattr(block_look, "MAX_SEQUENCES", 2)
    look = bench.engine.look.take(frozenset({third}))
    assert third in [each.key for each in look.sequences]
    assert (len(look.sequences), look.is_complete) == (2, False)
    monkeypatch.setattr(block_look, "MAX_CELLS", len(look.sequences[0].cells))
    assert [each.key for each in bench.engine.look.take(frozenset({third})).sequences] == [third]
    monkeypatch.setattr(block_look, "MAX_BLOCKS", 10)
    look = bench.engine.look.take()
    assert (len(look.pool.states), look.pool.num_blocks, look.is_complete) == (10, 64, False)


def test_looking_changes_nothing() -> None:
    makers = ManualMaker(decide=always), ManualMaker(decide=always)
    with_look, without = (Bench(num_blocks=8, num_host_blocks=16, make_mover=each) for each in makers)
    answers = []
    for bench in (with_look, without):
        for start in (0, 100, 0, 200, 100, 0):
            key = bench.submit(range(start, start + 17), sampling(max_tokens=3))
            while bench.engine.has_work or bench.engine.num_loading:
                bench.step()
                if bench is with_look:
                    look_at(bench)
            answers.append(bench.answers[key].cached_tokens)
    assert answers[:6] == answers[6:]
