"""Models with sliding layers whose pools are short of slots, against transformers' `generate`.

The window is far shorter than the prompts, slots that hold nothing hold NaN, and running sequences have just the slots
that they need: a slot that was given away too early, or read outside the window, shows in the logits and so in a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from cache_store.clock import ManualClock, SystemClock
from cache_store.pool_sizes import PoolSizes, StepLimits, bytes_held, num_held, span
from cache_store.tokens import pack
from tests.support.domains import make_domain
from tests.support.reference import generate
from tests.support.runner_drivers import tokens
from tests.support.tiny_models import WINDOW
from worker.engine import Engine
from worker.engine_config import EngineConfig
from worker.mover import MakeMover
from worker.requests import CacheMode, EngineRequest, Generated, RequestKey, Started
from worker.sampling import SamplingParams
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.gather_attention import GatherAttention
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import PagedRunner
from worker.transfers import BackgroundTransfers

NAMES = ("mistral", "gemma2", "gemma3_text", "gpt_oss")
BLOCK = 8
NUM_NEW = 28
"""More than a window."""
NUM_BLOCKS = 120
CONFIG = EngineConfig(num_step_tokens=48, num_max_sequences=3)
LIMITS = StepLimits(3, 48)
DOMAIN = make_domain("acme")


class Bench:
    """An engine over a paged runner, with what it said."""

    def __init__(
        self,
        model: LoadedModel,
        backend: str,
        num_cached: int,
        num_blocks: int = NUM_BLOCKS,
        num_host_blocks: int = 0,
        make_mover: MakeMover | None = None,
    ) -> None:
        geometry = model.geometry(BLOCK)
        num_slots = tuple(
            num_held(group, BLOCK, LIMITS) + num_cached if group.window else num_blocks for group in geometry.groups
        )
        assert min(num_slots) < num_blocks
        attention = GatherAttention() if backend == "gather" else fastest_attention(model)
        self.sizes = PoolSizes(num_blocks, num_slots)
        self.runner = PagedRunner(
            model,
            num_blocks,
            attention,
            BLOCK,
            fill=math.nan,
            num_host_blocks=num_host_blocks,
            make_mover=make_mover,
            num_slots=num_slots,
        )
        self.engine = Engine(self.runner, ManualClock(), CONFIG)
        self.cached: dict[RequestKey, int] = {}
        self.answers: dict[RequestKey, list[int]] = {}

    def submit(self, prompt: Sequence[int], num_new: int = NUM_NEW) -> RequestKey:
        key = RequestKey(len(self.answers))
        greedy = SamplingParams(0.0, 1.0, 0, 1, num_new, 0, ())
        self.engine.submit(EngineRequest(key, DOMAIN, pack(prompt), greedy, 1, CacheMode.READ_WRITE))
        self.answers[key] = []
        return key

    def step(self) -> None:
        for output in self.engine.step():
            if isinstance(output, Started):
                self.cached[output.key] = output.cached.total
            elif isinstance(output, Generated):
                self.answers[output.key] += output.token_ids
        self.engine.check_invariants()

    def run(self) -> None:
        while self.engine.has_work or self.engine.num_loading:
            self.engine.poll()
            self.step()


@pytest.mark.parametrize("backend", ["gather", "fastest"])
@pytest.mark.parametrize("name", NAMES)
def test_exact_in_mixed_batches_cold_and_warm(tiny: Callable[[str], LoadedModel], name: str, backend: str) -> None:
    model = tiny(name)
    prefix = tokens(6 * WINDOW, 1)
    prompts = [prefix, tokens(30, 2), [*prefix, *tokens(2 * WINDOW + 1, 3)]]
    bench = Bench(model, backend, num_cached=24)
    assert bench.runner.pools.size_bytes == bench.sizes.size_bytes(model.geometry(BLOCK))
    first = bench.submit(prompts[0])
    bench.run()
    keys = [first, *map(bench.submit, prompts[1:])]
    bench.run()
    for key, prompt in zip(keys, prompts, strict=True):
        assert bench.answers[key] == generate(model, prompt, NUM_NEW).tokens
    assert bench.cached[keys[2]] >= len(prefix) // BLOCK * BLOCK, "a prefix of six windows hits"


@pytest.mark.parametrize("name", ["gpt_oss", "mistral"])
def test_exact_after_preemptions_and_from_the_host(tiny: Callable[[str], LoadedModel], name: str) -> None:
    model = tiny(name)
    prompts = [tokens(60, seed) for seed in (1, 2, 3)]
    expected = [generate(model, prompt, NUM_NEW).tokens for prompt in prompts]
    bench = Bench(model, "gather", 40, 72, 200, lambda copier: BackgroundTransfers(copier, None, SystemClock()))
    try:
        flood = [bench.submit(tokens(400, 9), num_new=60)]
        for _ in range(9):
            bench.step()
        keys = [bench.submit(prompt) for prompt in prompts]
        bench.run()
        bench.submit(tokens(440, 10), num_new=4)  # what was there before goes down
        bench.run()
        again = [bench.submit(prompt) for prompt in prompts]
        bench.run()
        assert len(bench.answers[flood[0]]) == 60
        for one, other, tokens_ in zip(keys, again, expected, strict=True):
            assert bench.answers[one] == bench.answers[other] == tokens_
        assert bench.engine.load().pressure.preemptions > 0
        assert bench.engine.load().tiers[0].loaded_blocks > 0
        assert [bench.cached[key] for key in again].count(56) >= 2, "the others' windows went: there are not that many"
    finally:
        bench.runner.transfers.close()


@pytest.mark.parametrize("name", ["gpt_oss", "mistral"])
def test_a_running_sequence_holds_the_bytes_of_the_formula(tiny: Callable[[str], LoadedModel], name: str) -> None:
    model = tiny(name)
    geometry = model.geometry(BLOCK)
    bench = Bench(model, "fastest", num_cached=0)
    bench.submit(tokens(200, 1), num_new=40)
    most = 0
    while bench.engine.has_work:
        bench.step()
        held = _bytes_held(bench)
        if bench.engine.load().running_requests and not bench.engine.load().queued_prefill_tokens:
            num_computed = 200 + len(bench.answers[RequestKey(0)]) - 1
            assert held == bytes_held(geometry, num_computed)
            most = max(most, held)
    full = sum(group.bytes_per_block for group in geometry.groups if not group.window)
    sliding = sum(group.bytes_per_block for group in geometry.groups if group.window)
    assert most == 30 * full + (span(WINDOW, BLOCK) + 1) * sliding, "its tokens, and a window and the block begun"


def _bytes_held(bench: Bench) -> int:
    """Bytes of all slots that anybody has."""
    pool = bench.engine._pool
    used = {group.group: group.num_used for group in pool.windows.groups}
    groups = bench.runner.info.geometry.groups
    return sum(group.bytes_per_block * used.get(number, pool.num_held) for number, group in enumerate(groups))
