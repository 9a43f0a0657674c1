"""The contiguous runner: its pointers, its places, its bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cache_store.errors import PreconditionError
from tests.support.reference import generate
from tests.support.runner_drivers import contiguous_driver, paged_driver, tokens
from tests.support.tiny_models import NAMES
from worker.torch_runner.contiguous import ContiguousRunner
from worker.torch_runner.loader import LoadedModel


def test_bytes_follow_the_formula(tiny: Callable[[str], LoadedModel]) -> None:
    runner = ContiguousRunner(tiny("llama"), max_batch=3, max_len=40)
    assert runner.size_bytes == 2 * 4 * 2 * 16 * 40 * 3 * 4
    assert runner.num_blocks == 3 * 3


def test_a_place_that_is_taken_again_starts_at_zero(tiny: Callable[[str], LoadedModel]) -> None:
    model = tiny("llama")
    driver = contiguous_driver(model)
    tracks = [driver.start(tokens(60, seed)) for seed in (1, 2, 3)]
    driver.step(*((track, 60) for track in tracks))
    for track in tracks:
        driver.end(track)
    driver.step()
    later = driver.start(tokens(12, 4))
    driver.step((later, 12))
    driver.decode([later], 5)
    assert later.answer == generate(model, tokens(12, 4), 6).tokens


def test_a_sequence_goes_on_at_its_pointer_only(tiny: Callable[[str], LoadedModel]) -> None:
    driver = contiguous_driver(tiny("llama"))
    track = driver.start(tokens(20, 1))
    driver.step((track, 10))
    track.computed = 8
    with pytest.raises(PreconditionError, match="at its pointer 10, not at 8"):
        driver.step((track, 10))


def test_no_more_sequences_than_places(tiny: Callable[[str], LoadedModel]) -> None:
    driver = contiguous_driver(tiny("llama"))
    driver.step(*((driver.start(tokens(4, seed)), 4) for seed in range(3)))
    with pytest.raises(PreconditionError, match="all 3 places are taken"):
        driver.step((driver.start(tokens(4, 9)), 4))


def test_no_more_tokens_than_a_place_holds(tiny: Callable[[str], LoadedModel]) -> None:
    driver = contiguous_driver(tiny("llama"))
    with pytest.raises(PreconditionError, match="129 tokens do not fit into 128"):
        driver.step((driver.start(tokens(129, 1)), 129))


@pytest.mark.parametrize("name", NAMES)
def test_both_runners_give_the_same_logits(tiny: Callable[[str], LoadedModel], name: str) -> None:
    model = tiny(name)
    logits = []
    for driver in (contiguous_driver(model), paged_driver(model, "fastest")):
        a, b = driver.start(tokens(50, 1)), driver.start(tokens(33, 2))
        driver.step((a, 20), (b, 33))
        driver.step((b, 1), (a, 30))
        driver.decode([a, b], 3)
        logits.append(torch.stack(a.logits + b.logits))
    assert torch.allclose(*logits, atol=1e-4, rtol=0)
