"""Swap-ins through an engine on SmolLM2: against computing again, and beside requests that decode."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cache_store.block_files import BlockFiles
from cache_store.clock import SystemClock
from cache_store.policies.choice import PolicyKind
from cache_store.tokens import pack
from cache_store.transfers import Transfers
from tests.support.domains import make_domain
from tests.support.engines import sampling
from worker.block_copier import BlockCopier
from worker.engine import Engine
from worker.engine_config import EngineConfig
from worker.mover import Mover
from worker.requests import CacheMode, EngineRequest, Generated, RequestKey, Started
from worker.runner import ModelInfo
from worker.step_plan import StepPlan, StepResult
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import PagedRunner
from worker.transfers import BackgroundTransfers, DiskTier

BLOCK_SIZE = 16
DECODE_PROMPT, DECODE_TOKENS = 16, 80
"""Of requests that only decode beside a swap-in."""
TENANT, OTHER = make_domain("acme"), make_domain("globex")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Blocks of each tier."""

    device: int
    host: int
    disk: int = 0


@dataclass(slots=True)
class Answer:
    """What one request got."""

    ttft_s: float
    swap_s: float
    """Of it, until it was computed for the first time: what it took to bring its blocks to the device."""
    device_tokens: int
    host_tokens: int
    disk_tokens: int


@dataclass(slots=True)
class Step:
    """One step of the engine."""

    seconds: float
    num_prefill: int
    """Tokens."""
    num_stores: int
    num_loads: int


class ObservedRunner:
    """Keeps what each plan asked for; passes everything on."""

    def __init__(self, inner: PagedRunner) -> None:
        self._inner = inner
        self.plans: list[StepPlan] = []

    @property
    def info(self) -> ModelInfo:
        return self._inner.info

    @property
    def num_blocks(self) -> int:
        return self._inner.num_blocks

    @property
    def num_slots(self) -> tuple[int, ...]:
        return self._inner.num_slots

    @property
    def transfers(self) -> Transfers:
        return self._inner.transfers

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return self._inner.run(plan)


class SwapBench:
    """An engine with lower tiers whose eviction is least recently used: what was sent longest ago lies lowest."""

    def __init__(self, model: LoadedModel, sizes: Sizes, folder: Path, threads: int) -> None:
        def make(copier: BlockCopier) -> Mover:
            disk = None
            if sizes.disk:
                files = BlockFiles(folder / "blocks", copier.block_bytes, sizes.disk)
                disk = DiskTier(files, sizes.disk, files.close)
            return BackgroundTransfers(copier, disk, SystemClock())

        attention = fastest_attention(model, threads)
        inner = PagedRunner(
            model,
            sizes.device,
            attention,
            BLOCK_SIZE,
            num_threads=threads,
            num_host_blocks=sizes.host,
            make_mover=make,
        )
        self.runner = ObservedRunner(inner)
        config = EngineConfig(eviction_policy=PolicyKind.LRU, watermark=0.0)
        self.engine = Engine(self.runner, SystemClock(), config)
        self._keys = itertools.count()
        self._firsts: dict[RequestKey, float] = {}
        self._starts: dict[RequestKey, Started] = {}

    def close(self) -> None:
        self.runner.transfers.close()

    def submit(self, prompt: Sequence[int], max_tokens: int, tenant: str = "acme") -> RequestKey:
        """Queues a request that draws greedily."""
        key = RequestKey(next(self._keys))
        domain = TENANT if tenant == "acme" else OTHER
        params = sampling(max_tokens, min_tokens=max_tokens)
        self.engine.submit(EngineRequest(key, domain, pack(prompt), params, 1, CacheMode.READ_WRITE))
        return key

    def step(self) -> Step:
        """One step; where there is nothing to compute, a moment for what is on its way."""
        num_plans = len(self.runner.plans)
        begin_s = time.perf_counter()
        outputs = self.engine.step()
        seconds = time.perf_counter() - begin_s
        for output in outputs:
            if isinstance(output, Started):
                self._starts[output.key] = output
            if isinstance(output, Generated):
                self._firsts.setdefault(output.key, time.perf_counter())
        if len(self.runner.plans) == num_plans:
            time.sleep(0.0002)
            self.engine.poll()
            return Step(seconds, 0, 0, 0)
        plan = self.runner.plans[-1]
        num_prefill = sum(len(row.token_ids) for row in plan.rows if not row.is_decode)
        self.runner.plans.clear()
        return Step(seconds, num_prefill, len(plan.moves.stores), len(plan.loads))

    def answer(self, prompt: Sequence[int]) -> Answer:
        """One request of one token, alone."""
        begin_s = time.perf_counter()
        key = self.submit(prompt, 1)
        computed_s = 0.0
        while key not in self._firsts:
            step = self.step()
            computed_s += step.seconds if step.num_prefill else 0.0
        ttft_s = self._firsts[key] - begin_s
        self.settle()
        cached = self._starts[key].cached
        return Answer(ttft_s, ttft_s - computed_s, cached.device, cached.host, cached.disk)

    def has_first(self, key: RequestKey) -> bool:
        return key in self._firsts

    def run_all(self) -> None:
        """Until every request has ended."""
        while self.engine.has_work or self.engine.num_loading:
            self.step()

    def settle(self) -> None:
        """Lets the disk come after: what is written in the background is not to disturb the next measurement."""
        quiet_s = time.perf_counter() + 0.3
        while time.perf_counter() < quiet_s:
            self.engine.poll()
            time.sleep(0.005)


def random_prompt(length: int, rng: random.Random) -> tuple[int, ...]:
    """Tokens that nobody has sent."""
    return tuple(rng.randrange(10, 40_000) for _ in range(length))


def with_tail(prompt: Sequence[int], rng: random.Random) -> tuple[int, ...]:
    """The prompt and one block that is new each time: what is computed is the same wherever the prompt lies."""
    return (*prompt, *random_prompt(BLOCK_SIZE, rng))


@dataclass(slots=True)
class SwapTimes:
    """Answers of every round, with the prompt nowhere, on the device, on the host and on disk."""

    cold: list[Answer] = field(default_factory=list)
    device: list[Answer] = field(default_factory=list)
    host: list[Answer] = field(default_factory=list)
    disk: list[Answer] = field(default_factory=list)
    copy_s: list[float] = field(default_factory=list)
    """Of as many bytes, by plain memory copy."""


def measure_swaps(model: LoadedModel, folder: Path, num_tokens: int, rounds: int, threads: int) -> SwapTimes:
    """Prompts push each other down: there is room for one of them on the device, for two on the host."""
    room = num_tokens // BLOCK_SIZE + 4
    bench = SwapBench(model, Sizes(room, 2 * room, 6 * room), folder, threads)
    rng = random.Random(time.time_ns())
    times = SwapTimes()
    try:
        for _ in range(3):
            bench.answer(random_prompt(num_tokens, rng))
        for _ in range(rounds):
            first, second = random_prompt(num_tokens, rng), random_prompt(num_tokens, rng)
            times.cold.append(_checked(bench.answer(with_tail(first, rng)), "nowhere", num_tokens))
            times.device.append(_checked(bench.answer(with_tail(first, rng)), "device", num_tokens))
            times.cold.append(_checked(bench.answer(with_tail(second, rng)), "nowhere", num_tokens))
            times.host.append(_checked(bench.answer(with_tail(first, rng)), "host", num_tokens))
            for _ in range(3):
                other = random_prompt(num_tokens, rng)
                times.cold.append(_checked(bench.answer(with_tail(other, rng)), "nowhere", num_tokens))
            times.disk.append(_checked(bench.answer(with_tail(second, rng)), "disk", num_tokens))
            times.copy_s.append(_copy_s(num_tokens * bench.runner.info.geometry.bytes_per_token))
    finally:
        bench.close()
    return times


def _checked(answer: Answer, where: str, num_tokens: int) -> Answer:
    """The answer, where at least nine tenths of the prompt came from there."""
    found = {"device": answer.device_tokens, "host": answer.host_tokens, "disk": answer.disk_tokens}
    found["nowhere"] = num_tokens - sum(found.values())
    if found[where] < 0.9 * num_tokens:
        raise RuntimeError(f"a prompt of {num_tokens} tokens should have been found {where}: {found}")
    return answer


def _copy_s(num_bytes: int) -> float:
    source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
    begin_s = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - begin_s


@dataclass(slots=True)
class Disturbance:
    """Seconds of steps in which others only decode."""

    without: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    """While blocks are on their way to the device."""
    num_loads: int = 0
    num_swaps: int = 0


def measure_disturbance(
    model: LoadedModel, folder: Path, num_tokens: int, num_decoding: int, rounds: int, threads: int
) -> Disturbance:
    """Two long prompts take turns on the device, beside others that decode all the time."""
    room = num_tokens // BLOCK_SIZE
    num_own = num_decoding * (-(-(DECODE_PROMPT + DECODE_TOKENS) // BLOCK_SIZE) + 1)
    bench = SwapBench(model, Sizes(room + num_own + 4, 3 * room), folder, threads)
    rng = random.Random(time.time_ns())
    prompts = [random_prompt(num_tokens, rng) for _ in range(2)]
    others = [random_prompt(DECODE_PROMPT, rng) for _ in range(num_decoding)]
    result = Disturbance()
    try:
        for prompt in prompts:
            bench.answer(prompt)
        for number in range(rounds):
            decoding = [bench.submit(other, DECODE_TOKENS, "globex") for other in others]
            while not all(bench.has_first(key) for key in decoding):
                bench.step()
            result.without += [bench.step().seconds for _ in range(DECODE_TOKENS // 4)]
            key = bench.submit(prompts[number % 2], 1)
            while not bench.has_first(key):
                num_before = bench.engine.num_loading
                step = bench.step()
                if step.num_prefill == 0 and (num_before or step.num_loads):
                    result.during.append(step.seconds)
                    result.num_loads += step.num_loads
            result.num_swaps += 1
            bench.run_all()
    finally:
        bench.close()
    return result
