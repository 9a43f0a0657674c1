"""A runner whose steps are counted. Wraps any other; called by the engine's thread only."""

from __future__ import annotations

from cache_store.adapter_files import AdapterContent
from cache_store.clock import Clock
from cache_store.domain import AdapterDigest
from cache_store.transfers import Transfers
from worker.meter import Meter
from worker.runner import ModelInfo, PreparedAdapter, Runner
from worker.step_plan import StepPlan, StepResult


class MeteredRunner:
    """Implements `worker.runner.Runner`."""

    def __init__(self, inner: Runner, meter: Meter, clock: Clock) -> None:
        self._inner = inner
        self._meter = meter
        self._clock = clock

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

    def prepare_adapter(self, content: AdapterContent) -> PreparedAdapter:
        return self._inner.prepare_adapter(content)

    def attach_adapter(self, adapter: PreparedAdapter) -> None:
        self._inner.attach_adapter(adapter)

    def detach_adapter(self, adapter: AdapterDigest) -> None:
        self._inner.detach_adapter(adapter)

    def run(self, plan: StepPlan) -> StepResult:
        began_s = self._clock.monotonic_s()
        result = self._inner.run(plan)
        self._meter.ran(plan, result, began_s, self._clock.monotonic_s())
        return result
