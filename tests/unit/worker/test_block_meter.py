"""Blocks × time and evictions, read off what an engine says of its tenants."""

from __future__ import annotations

from collections import Counter

from cache_store.clock import ManualClock
from cache_store.domain import TenantId
from cache_store.metered import Metered
from cache_store.usage import TenantUse
from worker.block_meter import BlockMeter

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


def use(tenant: TenantId, used: int, **counts: int) -> TenantUse:
    return TenantUse(
        tenant,
        guaranteed_blocks=0,
        max_blocks=100,
        used_blocks=used,
        held_blocks=0,
        lent_blocks=0,
        evicted_blocks=counts.pop("evicted_blocks", 0),
        **counts,
    )


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.uses: list[TenantUse] = []
        self.meter = BlockMeter(self.clock, lambda: self.uses)

    def take(self, seconds: float = 0.0) -> dict[TenantId, Counter[Metered]]:
        self.clock.advance(seconds)
        return {tenant: Counter(counts) for tenant, counts in self.meter.take()}


def test_a_tenant_has_between_two_readings_what_it_had_at_the_first() -> None:
    bench = Bench()
    bench.uses = [use(ACME, 10, host_blocks=3), use(GLOBEX, 1, disk_blocks=2)]
    assert bench.take(5.0) == {}
    bench.uses = [use(ACME, 20)]
    assert bench.take(0.5) == {
        ACME: Counter({Metered.DEVICE_BLOCK_MS: 5_000, Metered.HOST_BLOCK_MS: 1_500}),
        GLOBEX: Counter({Metered.DEVICE_BLOCK_MS: 500, Metered.DISK_BLOCK_MS: 1_000}),
    }
    assert bench.take(1.0) == {ACME: Counter({Metered.DEVICE_BLOCK_MS: 20_000})}


def test_evictions_are_counted_as_they_grow_also_after_an_account_was_opened_again() -> None:
    bench = Bench()
    bench.uses = [use(ACME, 0, evicted_blocks=5, evicted_for_others=2), use(GLOBEX, 0, caused_evictions=2)]
    assert bench.take() == {
        ACME: Counter({Metered.EVICTED: 5, Metered.EVICTED_FOR_OTHERS: 2}),
        GLOBEX: Counter({Metered.CAUSED: 2}),
    }
    assert bench.take() == {}
    bench.uses = [use(ACME, 0, evicted_blocks=3, evicted_for_others=3)]
    assert bench.take() == {ACME: Counter({Metered.EVICTED: 3, Metered.EVICTED_FOR_OTHERS: 3})}


def test_the_sum_over_tenants_is_what_the_pool_had_in_use() -> None:
    bench = Bench()
    expected = total = 0
    for step in range(1, 50):
        passed_ms = step % 7 * 10
        expected += sum(each.used_blocks for each in bench.uses) * passed_ms
        taken = bench.take(passed_ms / 1_000)
        total += sum(counts[Metered.DEVICE_BLOCK_MS] for counts in taken.values())
        bench.uses = [use(TenantId(str(number)), step * number % 13) for number in range(step % 5)]
        bench.take()
    assert total == expected > 0
