"""What a row of the engine benchmark says about a goal."""

from __future__ import annotations

from tests.bench.engine.rows import OURS, Better, Goal, Row, cold_row


def test_of_several_peers_the_hardest_to_beat_counts() -> None:
    row = cold_row(1024)
    for ours, fast, slow in ((9.0, 10.0, 90.0), (8.0, 10.0, 80.0), (30.0, 40.0, 300.0)):
        row.add(OURS, ours)
        row.add("vllm", fast)
        row.add("transformers", slow)
    (goal,) = row.goals
    assert row.reached(goal) == 0.8
    assert row.holds(goal) is True


def test_higher_is_better_for_rates() -> None:
    row = Row("rate", "tokens/s", Better.HIGHER, (Goal(1.3, ("vllm",)),))
    row.add(OURS, 12.0)
    row.add("vllm", 10.0)
    assert row.reached(row.goals[0]) == 1.2
    assert row.holds(row.goals[0]) is False


def test_without_a_peer_nothing_is_claimed() -> None:
    row = cold_row(1024)
    row.add(OURS, 9.0)
    assert row.reached(row.goals[0]) is None
    assert row.holds(row.goals[0]) is None


def test_a_peer_that_failed_half_way_is_compared_in_the_rounds_that_it_had() -> None:
    row = cold_row(1024)
    row.add(OURS, 9.0)
    row.add("vllm", 10.0)
    row.add(OURS, 5.0)
    assert row.ratio("vllm") == 0.9
