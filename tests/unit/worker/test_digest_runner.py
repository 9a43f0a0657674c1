"""The token-digest runner must notice every wrong slot: plans are made by hand here, right and wrong ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cache_store.clock import ManualClock
from cache_store.tokens import pack
from tests.support.engines import sampling
from worker.digest_rule import expected_output
from worker.digest_runner import INSTANT, DigestRunner, Durations, digest_model, sliding_group
from worker.step_plan import Draw, Row, RowFailure, SequenceId, SlotCopy, SlotRef, StepPlan

VOCAB_SIZE = 1_000_000


def make_runner(window: int | None = None) -> DigestRunner:
    info = digest_model(block_size=4, window=window, vocab_size=VOCAB_SIZE)
    return DigestRunner(info, 16, INSTANT, ManualClock().advance)


def draw(position: int, temperature: float = 0.0, seed: int = 7, banned: tuple[int, ...] = ()) -> Draw:
    return Draw(0, position, temperature, 1.0, 0, seed, banned)


def row(tokens: range | list[int], start: int, *tables: tuple[int, ...], name: int = 0) -> Row:
    return Row(SequenceId(name), tuple(tokens), start, tables, (draw(start + len(tokens)),))


def run(
    runner: DigestRunner,
    *rows: Row,
    scrubs: tuple[SlotRef, ...] = (),
    copies: tuple[SlotCopy, ...] = (),
) -> list[int | str]:
    """Token or reason of failure by row."""
    result = runner.run(StepPlan(rows, scrubs, copies, ()))
    return [outcome.reason if isinstance(outcome, RowFailure) else outcome[0] for outcome in result.outcomes]


def oracle(runner: DigestRunner, tokens: range | list[int]) -> list[int | str]:
    info = runner.info
    sample = expected_output(info.geometry, info.vocab_size, pack(tokens), sampling(1), 1)[0]
    return list(sample.token_ids)


def test_in_one_go_in_chunks_and_token_by_token_give_the_oracle() -> None:
    runner = make_runner()
    assert run(runner, row(range(10), 0, (3, 5, 1))) == oracle(runner, range(10))
    runner = make_runner()
    run(runner, row(range(6), 0, (3, 5)))
    assert run(runner, row(range(6, 10), 6, (3, 5, 1))) == oracle(runner, range(10))
    runner = make_runner()
    for position in range(9):
        run(runner, row([position], position, tuple(range(position // 4 + 1))))
    assert run(runner, row([9], 9, (0, 1, 2))) == oracle(runner, range(10))


def test_a_shared_block_gives_the_same_token_as_an_own_one() -> None:
    runner = make_runner()
    run(runner, row(range(8), 0, (0, 1)))
    assert run(runner, row(range(8, 10), 8, (0, 1, 2), name=1)) == oracle(runner, range(10))


def test_an_empty_slot_fails_the_row_and_no_other() -> None:
    runner = make_runner()
    run(runner, row(range(4), 0, (0,)))
    outcomes = run(runner, row([9], 4, (7, 8), name=1), row([9], 4, (0, 1), name=2))
    assert outcomes == ["a slot was read that holds nothing", *oracle(runner, [0, 1, 2, 3, 9])]


@pytest.mark.parametrize("missing", [5, 6])
def test_a_block_that_is_filled_in_part_only_fails_the_row(missing: int) -> None:
    runner = make_runner()
    run(runner, row(range(missing), 0, (0, 1)))
    assert run(runner, row([9], 7, (0, 1))) == ["a slot was read that holds nothing"]


def test_a_scrubbed_slot_holds_nothing() -> None:
    runner = make_runner()
    run(runner, row(range(8), 0, (0, 1)))
    assert run(runner, row([9], 8, (0, 1, 2)), scrubs=(SlotRef(0, 1),)) == ["a slot was read that holds nothing"]


def test_another_block_in_the_table_changes_the_token() -> None:
    runner = make_runner()
    run(runner, row(range(8), 0, (0, 1)), row(range(100, 108), 0, (2, 3), name=1))
    right = oracle(runner, [*range(8), 9])
    assert run(runner, row([9], 8, (0, 1, 4))) == right
    assert run(runner, row([9], 8, (0, 3, 5), name=1)) != right
    assert run(runner, row([9], 8, (1, 0, 6), name=2)) != right


def test_a_block_with_the_right_tokens_after_other_tokens_changes_the_token() -> None:
    runner = make_runner()
    run(runner, row([1, 1, 1, 1, 7, 7, 7, 7], 0, (0, 1)), row([2, 2, 2, 2, 7, 7, 7, 7], 0, (2, 3), name=1))
    assert run(runner, row([9], 8, (0, 3, 4))) != oracle(runner, [1, 1, 1, 1, 7, 7, 7, 7, 9])


def test_a_position_that_is_not_the_real_one_changes_the_token() -> None:
    runner = make_runner()
    run(runner, row(range(8), 0, (0, 1)))
    right = oracle(runner, [*range(8), 9])
    assert run(runner, row([9], 0, (5,))) != right
    assert run(runner, row([9], 7, (0, 1))) != right


def test_a_stale_slot_beyond_the_length_is_not_read() -> None:
    runner = make_runner()
    run(runner, row(range(100, 108), 0, (0, 1)))
    assert run(runner, row(range(5), 0, (0, 1), name=1)) == oracle(runner, range(5))


def test_a_copy_brings_exactly_its_tokens() -> None:
    runner = make_runner()
    run(runner, row(range(7), 0, (0, 1)))
    copies = (SlotCopy(0, source=1, target=4, num_tokens=2),)
    assert run(runner, row([50], 6, (0, 4), name=1), copies=copies) == oracle(runner, [*range(6), 50])
    assert run(runner, row([51], 7, (0, 1))) == oracle(runner, [*range(7), 51])


def test_a_copy_that_is_too_short_fails_the_row() -> None:
    runner = make_runner()
    run(runner, row(range(7), 0, (0, 1)))
    copies = (SlotCopy(0, source=1, target=4, num_tokens=1),)
    assert run(runner, row([50], 6, (0, 4), name=1), copies=copies) == ["a slot was read that holds nothing"]


def test_a_sliding_group_reads_its_window_and_no_more() -> None:
    runner = make_runner(window=3)
    run(runner, row(range(12), 0, (0, 1, 2), (8, 9, 10)))
    right = oracle(runner, range(13))
    scrubs = (SlotRef(1, 8), SlotRef(1, 9))
    assert run(runner, row([12], 12, (0, 1, 2, 3), (8, 9, 10, 11)), scrubs=scrubs) == right
    scrubs = (SlotRef(1, 10),)
    assert run(runner, row([13], 13, (0, 1, 2, 3), (8, 9, 10, 11)), scrubs=scrubs) != oracle(runner, range(14))


def test_a_window_without_the_token_before_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        sliding_group(4, 1)


def test_draws_are_honoured() -> None:
    tokens = {}
    for name, asked in {
        "greedy": draw(3),
        "greedy, other seed": draw(3, seed=8),
        "sampled": draw(3, temperature=0.5),
        "sampled, other seed": draw(3, temperature=0.5, seed=8),
        "sampled, other position": draw(4, temperature=0.5),
        "sampled, other sample": replace(draw(3, temperature=0.5), sample_index=1),
        "sampled, other top_p": replace(draw(3, temperature=0.5), top_p=0.5),
        "sampled, other top_k": replace(draw(3, temperature=0.5), top_k=5),
    }.items():
        tokens[name] = run(make_runner(), replace(row(range(3), 0, (0,)), draws=(asked,)))[0]
    assert tokens.pop("greedy, other seed") == tokens["greedy"]
    assert len(set(tokens.values())) == len(tokens)


def test_banned_tokens_are_not_drawn() -> None:
    runner = DigestRunner(digest_model(block_size=4, vocab_size=3), 4, INSTANT, ManualClock().advance)
    for banned, allowed in (((0, 1), 2), ((0, 2), 1), ((1, 2), 0)):
        assert run(runner, replace(row([1], 0, (0,)), draws=(draw(1, banned=banned),))) == [allowed]
    everything = replace(row([1], 0, (0,)), draws=(draw(1, banned=(0, 1, 2)),))
    assert run(runner, everything) == ["every token of the vocabulary is banned"]


def test_a_step_takes_its_time_once() -> None:
    clock = ManualClock(start_s=0.0)
    runner = DigestRunner(digest_model(block_size=4), 16, Durations(step_s=1.0, token_s=0.25), clock.advance)
    run(runner, row(range(8), 0, (0, 1)))
    assert clock.monotonic_s() == 3.0
    run(runner, row([8], 8, (0, 1, 2)), row(range(4), 0, (3,), name=1))
    assert clock.monotonic_s() == 5.0


@pytest.mark.parametrize(
    ("words", "rows", "copies"),
    [
        ("before one that decodes", (row(range(2), 0, (0,)), row([1], 3, (1,), name=1)), ()),
        ("two rows", (row([1], 0, (0,)), row([1], 0, (1,))), ()),
        ("cover exactly", (row(range(5), 0, (0,)),), ()),
        ("cover exactly", (row(range(4), 0, (0, 1)),), ()),
        ("outside the pool", (row(range(4), 0, (16,)),), ()),
        ("negative", (row(range(4), 0, (-1,)),), ()),
        ("one slot twice", (row(range(8), 0, (0, 0)),), ()),
        ("write to one slot", (row(range(4), 0, (0,)), row(range(4), 0, (0,), name=1)), ()),
        ("only being written", (row([1], 4, (0, 1)), row(range(4), 0, (0,), name=1)), ()),
        ("target of two", (row([1], 0, (0,)),), (SlotCopy(0, 1, 2, 1), SlotCopy(0, 3, 2, 1))),
        ("source and target", (row([1], 0, (0,)),), (SlotCopy(0, 1, 2, 1), SlotCopy(0, 2, 3, 1))),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(
    words: str, rows: tuple[Row, ...], copies: tuple[SlotCopy, ...]
) -> None:
    with pytest.raises(AssertionError, match=words):
        run(make_runner(), *rows, copies=copies)


def test_a_copy_from_a_slot_that_is_scrubbed_is_refused() -> None:
    with pytest.raises(AssertionError, match="scrubbed before"):
        run(make_runner(), row([1], 0, (0,)), copies=(SlotCopy(0, 1, 2, 1),), scrubs=(SlotRef(0, 1),))
