"""Decoding by recorded forwards: padding, buffers, choice of size; the recording itself is stood in for."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import structlog
import torch
from torch import Tensor

from tests.support.reference import generate
from tests.support.runner_drivers import tokens
from tests.support.step_driver import Driver, Track
from tests.support.tiny_models import load_tiny
from worker.torch_runner.decode_graphs import DecodeGraphs, buckets
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import PagedRunner
from worker.torch_runner.triton_attention import TritonAttention

LAYER_TYPES = ["sliding_attention", "full_attention"]


class Repeating:
    """Records by keeping the work itself: a replay does it again and puts the result where the first one lay."""

    num_processors = 1

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_replays = 0

    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self.num_recorded += 1
        result = work()

        def replay() -> None:
            self.num_replays += 1
            result.copy_(work())

        return replay, result


class Refusing(Repeating):
    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def recorded_driver(model: LoadedModel, recorder: Repeating, max_rows: int = 3) -> tuple[Driver, PagedRunner]:
    attention = TritonAttention(model.layers, model.groups, model.device, 4, split=32)
    drivers: list[Driver] = []
    runner = PagedRunner(
        model,
        64,
        attention,
        fill=math.nan,
        observer=lambda plan, logits: drivers[0].observe(plan, logits),
        make_graphs=lambda model, pools: DecodeGraphs(model, pools, attention, recorder, max_rows),
    )
    drivers.append(Driver(runner))
    return drivers[0], runner


def assert_right(model: LoadedModel, track: Track) -> None:
    expected = generate(model, track.tokens[: track.num_prompt], len(track.answer))
    count = len(expected.tokens)  # it may end sooner
    assert track.answer[:count] == expected.tokens
    assert torch.allclose(torch.stack(track.logits)[:count], expected.logits, atol=1e-4, rtol=0)


def test_sizes_reach_the_largest_batch() -> None:
    assert buckets(1) == (1,)
    assert buckets(3) == (1, 2, 4)
    assert buckets(64) == (1, 2, 4, 8, 16, 32, 64)


def test_replayed_steps_give_the_tokens_of_generate(tmp_path: Path) -> None:
    model = load_tiny("gpt_oss", tmp_path, num_hidden_layers=2, layer_types=LAYER_TYPES)
    recorder = Repeating()
    driver, _ = recorded_driver(model, recorder)
    assert recorder.num_recorded == 3
    tracks = [driver.start(tokens(count, count)) for count in (40, 15, 9)]
    driver.step(*((track, track.num_prompt) for track in tracks))
    assert recorder.num_replays == 0, "prompts are not decoded"
    driver.decode(tracks, 2)
    driver.decode(tracks[:1], 1)
    assert recorder.num_replays == 3
    for track in tracks:
        assert_right(model, track)


def test_a_step_that_does_not_fit_is_launched_as_it_comes(tmp_path: Path) -> None:
    model = load_tiny("llama", tmp_path, num_hidden_layers=1)
    recorder = Repeating()
    driver, _ = recorded_driver(model, recorder, max_rows=1)
    tracks = [driver.start(tokens(9, 1)), driver.start(tokens(5, 2))]
    driver.step((tracks[0], 9), (tracks[1], 5))
    driver.decode(tracks, 1)
    assert recorder.num_replays == 0
    for track in tracks:
        assert_right(model, track)


def test_padding_writes_to_no_slot(tmp_path: Path) -> None:
    model = load_tiny("llama", tmp_path, num_hidden_layers=1)
    driver, runner = recorded_driver(model, Repeating())
    assert runner.pools.groups[0].keys.isnan().all(), "recording stored something"
    tracks = [driver.start(tokens(9, seed)) for seed in range(3)]
    driver.step(*((track, 9) for track in tracks))
    driver.decode(tracks, 1)  # three rows in a batch of four
    written = ~runner.pools.groups[0].keys.isnan().flatten(1).all(1)
    assert set(written.nonzero().flatten().tolist()) == {track.tables[0][0] for track in tracks}
    filled = (~runner.pools.groups[0].keys.isnan()).sum()
    assert filled == 3 * 10 * 2 * 16


def test_a_model_that_cannot_be_recorded_is_served_without(tmp_path: Path) -> None:
    model = load_tiny("llama", tmp_path, num_hidden_layers=1)
    with structlog.testing.capture_logs() as logs:
        driver, _ = recorded_driver(model, Refusing())
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["decoding_not_recorded"]
    track = driver.start(tokens(9, 1))
    driver.step((track, 9))
    driver.decode([track], 1)
    assert_right(model, track)
