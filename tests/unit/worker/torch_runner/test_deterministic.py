"""Deterministic numerics: the same bits cold, warm at every offset, cut anyhow, beside anybody, and after a swap."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cache_store.adapter_files import read_adapter
from cache_store.clock import SystemClock
from cache_store.errors import InvalidRequestError, PreconditionError
from cache_store.policies.choice import PolicyKind
from cache_store.registry import WorkerId
from cache_store.tokens import pack
from cache_store.usage import CachedTokens
from tests.proof.drive import LogitsTap
from tests.support.adapter_folders import write_adapter
from tests.support.compilers import needs_compiler
from tests.support.domains import make_domain
from tests.support.engines import sampling
from tests.support.runner_drivers import tokens
from tests.support.step_driver import Driver, Track
from tests.support.tiny_models import kernel_cache, load_tiny
from worker.block_copier import BlockCopier
from worker.build import build_runner
from worker.config import NumBlocks, Numerics, WorkerConfig
from worker.engine import Engine
from worker.engine_config import EngineConfig
from worker.mover import Mover
from worker.requests import CacheMode, EngineRequest, Failed, Generated, RequestKey, Started
from worker.torch_runner.attention_backend import AttentionBackend
from worker.torch_runner.deterministic import check_batches, deterministic_attention, torch_threads
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import PagedRunner
from worker.transfers import BackgroundTransfers

pytestmark = needs_compiler
NAMES = ("llama", "qwen3", "mistral", "gemma2", "gemma3_text")
"""The first three by the fused forward, the others by their modules."""
NUM_PROMPT, NUM_NEW = 45, 4
Fixed = tuple[LoadedModel, AttentionBackend]


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Fixed]:
    """A model and its attention of fixed order."""
    folder, made = tmp_path_factory.mktemp("fixed"), {}

    def get(name: str) -> Fixed:
        if name not in made:
            model = load_tiny(name, folder)
            made[name] = model, deterministic_attention(model, 1, kernel_cache(folder))
        return made[name]

    return get


def driver(model: LoadedModel, attention: AttentionBackend, num_threads: int = 1) -> Driver:
    drivers: list[Driver] = []
    runner = PagedRunner(
        model,
        400,
        attention,
        fill=math.nan,
        num_threads=num_threads,
        observer=lambda plan, logits: drivers[0].observe(plan, logits),
    )
    drivers.append(Driver(runner))
    return drivers[0]


def prompt() -> list[int]:
    return tokens(NUM_PROMPT, seed=1)


def alone(fixed: Fixed) -> Track:
    """The prompt cold, in one step, with nobody beside it."""
    bench = driver(*fixed)
    track = bench.start(prompt())
    bench.step((track, NUM_PROMPT))
    bench.decode([track], NUM_NEW - 1)
    return track


def assert_same_bits(track: Track, expected: Track) -> None:
    assert track.answer == expected.answer
    assert all(torch.equal(a, b) for a, b in zip(track.logits, expected.logits, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_prefix_of_any_length_may_be_cached(fixed: Callable[[str], Fixed], name: str) -> None:
    expected, bench = alone(fixed(name)), driver(*fixed(name))
    first = bench.start(prompt())
    bench.step((first, NUM_PROMPT))
    for num_shared in range(1, NUM_PROMPT):
        warm = bench.start(prompt(), prefix_of=first, num_shared=num_shared)
        bench.step((warm, NUM_PROMPT - num_shared))
        bench.decode([warm], NUM_NEW - 1)
        assert_same_bits(warm, expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_cut_anyhow_and_beside_anybody(fixed: Callable[[str], Fixed], name: str, seed: int) -> None:
    expected, bench, choose = alone(fixed(name)), driver(*fixed(name)), random.Random(seed)
    others = [bench.start(tokens(choose.randint(1, 90), seed=50 + index)) for index in range(choose.choice([1, 5, 40]))]
    track = bench.start(prompt())
    while len(track.answer) < NUM_NEW:
        chosen = choose.sample(others, choose.randint(0, len(others)))
        work = [(each, choose.randint(1, len(each.tokens) - each.computed)) for each in (track, *chosen)]
        work.sort(key=lambda entry: (entry[1] != 1 or not entry[0].computed, choose.random()))
        bench.step(*work)
    assert_same_bits(track, expected)


def test_any_number_of_threads(fixed: Callable[[str], Fixed], tmp_path: Path) -> None:
    model, attention = fixed("llama")
    expected = alone((model, attention))
    before = torch.get_num_threads()
    try:
        bench = driver(model, deterministic_attention(model, 2, kernel_cache(tmp_path)), num_threads=2)
        track = bench.start(prompt())
        bench.step((track, NUM_PROMPT))
        bench.decode([track], NUM_NEW - 1)
    finally:
        torch.set_num_threads(before)
    assert_same_bits(track, expected)


def test_steps_that_torch_would_share_out_among_threads(tmp_path: Path) -> None:
    model = load_tiny("gemma2", tmp_path, intermediate_size=160)
    before = torch.get_num_threads()
    try:
        attention = deterministic_attention(model, 3, kernel_cache(tmp_path))
        expected = alone((model, attention))
        bench = driver(model, attention, torch_threads(model, 3))
        lengths = (82, 95, NUM_PROMPT, 117, 53, 109, 81, 56)  # the end of a share lies in the one that is watched
        tracks = [bench.start(tokens(length, seed=50 + index)) for index, length in enumerate(lengths)]
        tracks[2] = track = bench.start(prompt())
        bench.step(*zip(tracks, lengths, strict=True))
        bench.decode([track], NUM_NEW - 1)
    finally:
        torch.set_num_threads(before)
    assert_same_bits(track, expected)


class SmallEngine:
    """Over few blocks and a host pool; what was used longest ago goes there."""

    def __init__(self, fixed: Fixed, num_blocks: int) -> None:
        def make(copier: BlockCopier) -> Mover:
            return BackgroundTransfers(copier, None, SystemClock())

        self.tap = LogitsTap()
        model, attention = fixed
        runner = PagedRunner(
            model, num_blocks, attention, fill=math.nan, observer=self.tap, num_host_blocks=64, make_mover=make
        )
        self.domain = make_domain("acme", kv_format=runner.info.kv_format.digest())
        config = EngineConfig(eviction_policy=PolicyKind.LRU, watermark=0.0, num_step_tokens=32, num_max_sequences=16)
        self.engine = Engine(runner, SystemClock(), config)
        self.close = runner.transfers.close
        self.num_keys = 0

    def run(self, *prompts: list[int]) -> tuple[list[list[int]], list[list[Tensor]], list[CachedTokens]]:
        """Tokens, logits and cached tokens of each prompt."""
        keys = {RequestKey(self.num_keys + index): index for index in range(len(prompts))}
        self.num_keys += len(prompts)
        answers: list[list[int]] = [[] for _ in prompts]
        logits: list[list[Tensor]] = [[] for _ in prompts]
        cached = [CachedTokens()] * len(prompts)
        for key, index in keys.items():
            params = sampling(NUM_NEW, min_tokens=NUM_NEW)
            request = EngineRequest(key, self.domain, pack(tuple(prompts[index])), params, 1, CacheMode.READ_WRITE)
            self.engine.submit(request)
        give_up_s = time.monotonic() + 30
        while any(len(answer) < NUM_NEW for answer in answers):
            assert time.monotonic() < give_up_s
            outputs = self.engine.step()
            rows = iter(self.tap.take().values())
            for output in outputs:
                assert not isinstance(output, Failed)
                if isinstance(output, Started):
                    cached[keys[output.key]] = output.cached
                if isinstance(output, Generated):
                    answers[keys[output.key]].extend(output.token_ids)
                    logits[keys[output.key]].append(next(rows))
        return answers, logits, cached


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_through_an_engine_that_swaps_and_preempts(fixed: Callable[[str], Fixed], name: str) -> None:
    expected = alone(fixed(name))
    engine = SmallEngine(fixed(name), num_blocks=12)
    try:
        engine.run(prompt())
        for seed in range(3):  # what was computed goes to the host
            engine.run(tokens(150, seed=20 + seed))
        (again, *_), (logits, *_), (cached, *_) = engine.run(prompt(), *(tokens(60, seed=70 + at) for at in range(4)))
    finally:
        engine.close()
    assert cached == CachedTokens(host=NUM_PROMPT // 16 * 16)
    assert again == expected.answer
    assert all(torch.equal(a, b) for a, b in zip(logits, expected.logits, strict=True))


def test_models_whose_bits_depend_on_the_batch_are_refused(tmp_path: Path) -> None:
    model = load_tiny("gpt_oss", tmp_path)
    with pytest.raises(PreconditionError, match="'gpt_oss' give other bits"):
        deterministic_attention(model, 1, kernel_cache(tmp_path))


def test_what_is_cached_as_latents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="latents"):
        deterministic_attention(load_tiny("deepseek_v2", tmp_path), 1, kernel_cache(tmp_path))


def test_without_a_compiler_it_is_refused(
    fixed: Callable[[str], Fixed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(PreconditionError, match="compiler"):
        deterministic_attention(fixed("llama")[0], 1, tmp_path)


def test_adapters_are_refused(fixed: Callable[[str], Fixed], tmp_path: Path) -> None:
    model, attention = fixed("llama")
    folder = write_adapter(tmp_path / "adapter", load_tiny("llama", tmp_path), seed=3)
    with pytest.raises(InvalidRequestError, match="--deterministic serve no adapters"):
        PagedRunner(model, 4, attention).prepare_adapter(read_adapter(folder))


def test_the_trial_finds_what_depends_on_the_batch(tmp_path: Path) -> None:
    model = load_tiny("gemma2", tmp_path)
    with pytest.raises(PreconditionError, match="other bits"):
        check_batches(model, fastest_attention(model, 1, kernel_cache(tmp_path)), 1)


@pytest.mark.parametrize("numerics", Numerics)
def test_a_worker_is_built_as_it_was_told(fixed: Callable[[str], Fixed], tmp_path: Path, numerics: Numerics) -> None:
    model, _ = fixed("llama")
    config = WorkerConfig(
        worker_id=WorkerId("w0"),
        model_name="llama",
        redis_url="redis://127.0.0.1:1",
        cluster_key=b"k" * 32,
        pool=NumBlocks(8),
        model_folder=model.folder.path,
        cache_dir=kernel_cache(tmp_path),
        numerics=numerics,
    )
    runner = build_runner(config)
    adapter = read_adapter(write_adapter(tmp_path / "adapter", load_tiny("llama", tmp_path), seed=3))
    if numerics is Numerics.FAST:
        runner.prepare_adapter(adapter)
    else:
        with pytest.raises(InvalidRequestError, match="--deterministic"):
            runner.prepare_adapter(adapter)
