"""Runners against transformers' own `generate`: mixed batches, chunks, windows, shared prefixes, parts of blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.reference import Reference, generate
from tests.support.runner_drivers import contiguous_driver, paged_driver, tokens
from tests.support.step_driver import Track
from tests.support.tiny_models import NAMES
from worker.torch_runner.loader import LoadedModel

NUM_NEW = 24
TOLERANCE = 1e-4
BACKENDS = ("gather", "fastest")


def assert_same(track: Track, reference: Reference) -> None:
    count = len(track.answer)
    assert count > 0
    assert track.answer == reference.tokens[:count]
    assert torch.allclose(torch.stack(track.logits), reference.logits[:count], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_paged_equals_generate_in_mixed_batches(tiny: Callable[[str], LoadedModel], name: str, backend: str) -> None:
    model = tiny(name)
    long, short = tokens(70, 1), tokens(9, 2)
    forked = long[:40] + tokens(13, 3)  # 40 = two full blocks and half of a third, which is copied
    driver = paged_driver(model, backend)
    a, b = driver.start(long), driver.start(short)
    driver.step((a, 30))
    driver.step((b, 9), (a, 21))
    driver.step((b, 1), (a, 19))
    c = driver.start(forked, prefix_of=a, num_shared=40)
    driver.step((a, 1), (b, 1), (c, 13))
    driver.decode([a, b, c], NUM_NEW - 4)
    for track, prompt in ((a, long), (b, short), (c, forked)):
        assert_same(track, generate(model, prompt, NUM_NEW))


@pytest.mark.parametrize("name", NAMES)
def test_contiguous_equals_generate_in_mixed_batches(tiny: Callable[[str], LoadedModel], name: str) -> None:
    model = tiny(name)
    long, short = tokens(70, 1), tokens(9, 2)
    driver = contiguous_driver(model)
    a, b = driver.start(long), driver.start(short)
    driver.step((a, 30))
    driver.step((b, 9), (a, 40))
    driver.decode([a, b], NUM_NEW - 2)
    for track, prompt in ((a, long), (b, short)):
        assert_same(track, generate(model, prompt, NUM_NEW))
