"""Audits on tensors: rounding raises no alarm, a changed element does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from structlog.testing import capture_logs

from cache_store.audit_mode import AuditMode
from cache_store.clock import SystemClock
from cache_store.kv_layout import GroupShape, KvDtype
from cache_store.tokens import pack
from cache_store.usage import AuditCounts
from tests.support.compilers import needs_compiler
from tests.support.engines import ACME, sampling
from tests.support.tiny_models import NAMES, VOCAB_SIZE, kernel_cache, load_tiny
from worker.engine import Engine
from worker.engine_config import EngineConfig
from worker.requests import CacheMode, EngineRequest, RequestKey
from worker.step_plan import SlotCompare, StepPlan, StepResult
from worker.torch_runner.attention_backend import AttentionBackend
from worker.torch_runner.deterministic import deterministic_attention
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.loader import LoadedModel, with_kv_dtype
from worker.torch_runner.paged import PagedRunner
from worker.torch_runner.pool_compare import TOLERANCES, slot_differences
from worker.torch_runner.pools import KvPools


class Noted(PagedRunner):
    """Keeps all differences."""

    differences: list[float]

    def run(self, plan: StepPlan) -> StepResult:
        result = super().run(plan)
        self.differences += result.differences
        return result


class Bench:
    """An engine over a tiny model whose pools are poisoned."""

    def __init__(
        self,
        model: LoadedModel,
        budget: int,
        mode: AuditMode = AuditMode.SAMPLED,
        attention: AttentionBackend | None = None,
        tolerance: float | None = None,
    ) -> None:
        backend = attention or fastest_attention(model)
        self.runner = Noted(model, 200, backend, 4, fill=math.nan, tolerance=tolerance)
        self.runner.differences = []
        config = EngineConfig(num_step_tokens=budget, num_max_sequences=8, audit=mode)
        self.engine = Engine(self.runner, SystemClock(), config, draw=lambda: 0.0)
        self._num_requests = 0

    def submit(self, prompt: list[int]) -> None:
        self._num_requests += 1
        key, params = RequestKey(self._num_requests), sampling(4)
        self.engine.submit(EngineRequest(key, ACME, pack(prompt), params, 1, CacheMode.READ_WRITE))

    def run(self) -> None:
        while self.engine.has_work:
            self.engine.step()
        while self.engine.has_idle_work:
            self.engine.step_idle()
        self.engine.check_invariants()

    @property
    def counts(self) -> AuditCounts:
        return self.engine.load().audit

    def slots(self, prompt: list[int], number: int) -> tuple[int, ...]:
        return self.engine._pool.audit.standing(ACME, pack(prompt), len(prompt))[number].slots


@pytest.mark.parametrize("mode", AuditMode)
@pytest.mark.parametrize("name", NAMES)
def test_rounding_raises_no_alarm(name: str, mode: AuditMode, tiny: Callable[[str], LoadedModel]) -> None:
    random = Random(3)
    bench = Bench(tiny(name), 24, mode)
    prompts = [[random.randrange(3, VOCAB_SIZE) for _ in range(60)]]
    for _ in range(10):
        known = random.choice(prompts)
        start = random.randrange(len(known))
        prompts.append([*known[:start], *(random.randrange(3, VOCAB_SIZE) for _ in range(random.randrange(1, 40)))])
        for prompt in random.sample(prompts, min(3, len(prompts))):  # together, so that chunks and rows differ
            bench.submit(prompt)
        bench.run()
    assert bench.counts.checked_blocks > 50
    assert bench.counts.mismatches == 0
    assert max(bench.runner.differences) < TOLERANCES[KvDtype.FLOAT32] / 10


@pytest.mark.parametrize("dtype", [KvDtype.INT8, KvDtype.FLOAT8])
def test_quantising_raises_no_alarm_and_damage_does(dtype: KvDtype, tiny: Callable[[str], LoadedModel]) -> None:
    random = Random(5)
    bench = Bench(with_kv_dtype(tiny("llama"), dtype), 24)
    prompts = [[random.randrange(3, VOCAB_SIZE) for _ in range(60)]]
    for _ in range(8):
        known = random.choice(prompts)
        start = random.randrange(len(known))
        prompts.append([*known[:start], *(random.randrange(3, VOCAB_SIZE) for _ in range(random.randrange(1, 40)))])
        for prompt in random.sample(prompts, min(3, len(prompts))):
            bench.submit(prompt)
        bench.run()
    assert bench.counts.checked_blocks > 50
    assert bench.counts.mismatches == 0
    assert max(bench.runner.differences) < TOLERANCES[dtype] / 2
    scales = bench.runner.pools.groups[0].key_scales
    assert scales is not None
    bench.submit(prompts[0])
    bench.run()
    scales[bench.slots(prompts[0], 2)[0], 1, 2] *= 2
    bench.submit(prompts[0])
    with capture_logs():
        bench.run()
    assert bench.counts.mismatches == 1


@needs_compiler
def test_with_fixed_numerics_every_bit_counts(tmp_path: Path) -> None:
    model = load_tiny("llama", tmp_path)
    attention = deterministic_attention(model, 1, kernel_cache(tmp_path))
    random = Random(7)
    bench = Bench(model, 24, attention=attention, tolerance=0.0)
    prompts = [[random.randrange(3, VOCAB_SIZE) for _ in range(60)]]
    for _ in range(8):
        known = random.choice(prompts)
        start = random.randrange(len(known))
        prompts.append([*known[:start], *(random.randrange(3, VOCAB_SIZE) for _ in range(random.randrange(1, 40)))])
        for prompt in random.sample(prompts, min(3, len(prompts))):
            bench.submit(prompt)
        bench.run()
    assert bench.counts.checked_blocks > 50
    assert set(bench.runner.differences) == {0.0}
    bench.submit(prompts[0])
    bench.run()
    keys = bench.runner.pools.groups[0].keys
    keys[bench.slots(prompts[0], 2)[0], 1, 2, 1, 7] *= 1 + 2**-23
    bench.submit(prompts[0])
    with capture_logs():
        bench.run()
    assert bench.counts.mismatches == 1


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("place", ["keys", "values"])
def test_a_changed_element_is_found(group: int, place: str, tiny: Callable[[str], LoadedModel]) -> None:
    bench = Bench(tiny("gpt_oss"), 64)
    prompt = list(range(50, 75))
    bench.submit(prompt)
    bench.run()
    slot = bench.slots(prompt, 3)[group]
    elements: torch.Tensor = getattr(bench.runner.pools.groups[group], place)
    elements[slot, 1, 2, 1, 7] += elements[slot].abs().max() / 4
    bench.submit(prompt)
    with capture_logs() as logs:
        bench.run()
    assert [log["event"] for log in logs] == ["audit_mismatch"]
    assert bench.counts.mismatches == 1
    assert bench.engine.lookup(ACME, pack(prompt)).total == 12


@pytest.mark.parametrize("dtype", KvDtype)
def test_differences_are_relative_to_the_layer(dtype: KvDtype) -> None:
    shape = GroupShape(0, 2, 8, 4, (0, 1))
    pools = KvPools((shape,), (3,), 4, dtype, torch.device("cpu"), 0.0)
    group = pools.groups[0]
    for elements in (group.keys, group.values):
        elements[:] = torch.randint(1, 5, elements.shape[1:]).to(elements.dtype)
        elements[:, 1] = 8
    for scales in (group.key_scales, group.value_scales):
        if scales is not None:
            scales[:] = 0.5
    group.values[1, 1, 3, 1, 2] = 6
    group.values[2, 1, 3, 1, 2] = 6
    compares = (SlotCompare(0, 0, 1), SlotCompare(0, 1, 2), SlotCompare(0, 0, 0))
    assert slot_differences(pools, compares) == (0.25, 0.0, 0.0)


def test_what_is_no_number_is_no_match() -> None:
    shape = GroupShape(0, 1, 8, 0, (0,))  # latent: no values
    pools = KvPools((shape,), (2,), 4, KvDtype.FLOAT32, torch.device("cpu"), math.nan)
    pools.groups[0].keys[0] = 1.0
    (difference,) = slot_differences(pools, (SlotCompare(0, 0, 1),))
    assert not difference <= TOLERANCES[KvDtype.FLOAT32]
