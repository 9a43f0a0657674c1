"""Drawing tokens from logits: what is left of a distribution, how often each token comes, who is harmed by NaN."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from worker.step_plan import Draw, Row, RowFailure, SequenceId
from worker.torch_runner.sampler import draw_from, draw_rows, probabilities

PLAIN = Draw(sample_index=0, position=7, temperature=1.0, top_p=1.0, top_k=0, seed=1, banned=())


def row(*draws: Draw) -> Row:
    return Row(SequenceId(1), (5,), 7, ((0,),), draws)


def kept(logits: list[float], **changes: float) -> list[int]:
    weights = probabilities(torch.tensor([logits]), [replace(PLAIN, **changes)])  # type: ignore[arg-type]
    return weights[0].nonzero().flatten().tolist()


def test_greedy_takes_the_largest_and_never_a_banned_one() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0]])
    greedy = replace(PLAIN, temperature=0.0)
    assert draw_rows((row(greedy, replace(greedy, banned=(1,)), replace(greedy, banned=(1, 2, 99))),), logits) == (
        (1, 2, 3),
    )


def test_top_k_keeps_the_largest_and_of_equals_the_lower_ids() -> None:
    assert kept([1.0, 2.0, 2.0, 0.0, 2.0], top_k=2) == [1, 2]
    assert kept([1.0, 2.0, 2.0, 0.0, 2.0], top_k=4) == [0, 1, 2, 4]
    assert kept([1.0, 2.0, 2.0, 0.0, 2.0], top_k=9) == [0, 1, 2, 3, 4]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log().tolist()
    assert kept(logits, top_p=0.5) == [0]
    assert kept(logits, top_p=0.51) == [0, 1]
    assert kept(logits, top_p=0.76) == [0, 1, 2]
    assert kept(logits, top_p=1.0) == [0, 1, 2, 3]
    assert kept(logits, top_p=1e-9) == [0]


def test_top_p_applies_to_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.2, 0.2, 0.2]).log().tolist()
    assert kept(logits, top_k=2, top_p=0.6) == [0]


def test_a_flat_distribution_is_cut_by_ids_however_large_the_nucleus() -> None:
    assert kept([0.0] * 5000, top_p=0.5) == list(range(2500))
    assert kept([0.0] * 5000, top_p=0.1) == list(range(500))


def sorted_nucleus(logits: Tensor, top_p: float) -> set[int]:
    """The textbook way: sort everything."""
    weights, order = logits.double().softmax(0).sort(descending=True, stable=True)
    before = weights.cumsum(0) - weights
    return set(order[before < top_p].tolist())


@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999])
def test_top_p_equals_sorting_the_whole_vocabulary(top_p: float) -> None:
    logits = torch.randn(4000, generator=torch.Generator().manual_seed(2)) * 2
    assert set(kept(logits.tolist(), top_p=top_p)) == sorted_nucleus(logits, top_p)


def test_tokens_come_as_often_as_their_probability_says() -> None:
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    num_draws = 4000
    draws = tuple(replace(PLAIN, position=position) for position in range(num_draws))
    (tokens,) = draw_rows((row(*draws),), logits)
    assert not isinstance(tokens, RowFailure)
    counts = Counter(tokens)
    for token_id, probability in enumerate((0.1, 0.2, 0.3, 0.4)):
        deviation = (num_draws * probability * (1 - probability)) ** 0.5
        assert abs(counts[token_id] - num_draws * probability) < 4 * deviation


def test_temperature_sharpens() -> None:
    logits = torch.tensor([1.0, 2.0])
    draws = [replace(PLAIN, temperature=value) for value in (2.0, 0.25)]
    hot, cold = probabilities(logits.repeat(2, 1), draws)
    assert torch.allclose(hot[0] / hot[1], torch.tensor(-0.5).exp().double())
    assert torch.allclose(cold[0] / cold[1], torch.tensor(-4.0).exp().double())


def test_a_draw_depends_on_seed_sample_and_position_and_not_on_its_neighbours() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(3))
    alone = draw_rows((row(PLAIN),), logits[1:2])[0]
    beside = draw_rows((row(replace(PLAIN, seed=5)), row(PLAIN), row(replace(PLAIN, seed=6))), logits)[1]
    assert alone == beside
    spread = {
        draw_rows((row(replace(PLAIN, **change)),), torch.zeros(1, 1000))  # type: ignore[arg-type]
        for change in ({}, {"seed": 2}, {"sample_index": 1}, {"position": 8})
    }
    assert len(spread) == 4


def test_draws_of_any_kind_together_are_those_of_each_alone() -> None:
    logits = (torch.randn(12, 1500, generator=torch.Generator().manual_seed(5)) * 4).round() / 2
    kinds: tuple[dict[str, object], ...] = (
        {"temperature": 0.0},
        {"temperature": 0.7, "top_k": 40},
        {"top_p": 0.9},
        {"top_p": 0.9999, "temperature": 9.0},
        {"top_k": 7, "top_p": 0.8},
        {"banned": (3, 1499, 2000)},
    )
    draws = [replace(PLAIN, seed=index, **kinds[index % 6]) for index in range(12)]  # type: ignore[arg-type]
    together = draw_rows(tuple(row(draw) for draw in draws), logits)
    alone = [draw_rows((row(draw),), logits[index : index + 1])[0] for index, draw in enumerate(draws)]
    assert list(together) == alone


def test_large_numbers_whose_sum_overflows_are_finite() -> None:
    greedy = replace(PLAIN, temperature=0.0)
    assert draw_rows((row(greedy),), torch.tensor([[3e38, 3.2e38, 3e38]])) == ((1,),)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_fails_alone(bad: float) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(4))
    rows = (row(PLAIN), row(PLAIN), row(), row(PLAIN))
    clean = draw_rows(rows, logits)
    logits[1, 20] = bad
    outcomes = draw_rows(rows, logits)
    assert isinstance(outcomes[1], RowFailure)
    assert (outcomes[0], outcomes[2], outcomes[3]) == (clean[0], (), clean[3])


def test_the_ends_of_the_range_of_numbers_hit_tokens_that_can_come() -> None:
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]], dtype=torch.float64)
    assert draw_from(weights.repeat(3, 1), [0.0, 0.5, 1 - 2**-53]) == [1, 3, 3]


def test_a_step_without_draws_gives_empty_outcomes() -> None:
    assert draw_rows((row(), row()), torch.empty(0, 50)) == ((), ())
