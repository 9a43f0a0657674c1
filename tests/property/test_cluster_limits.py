"""Limits over several routers, in simulated time: never exceeded, reached, and what deaths and outages do to them."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from cache_store.limit_store import PLACES_LEASE_S
from services.router.cluster_limits import PATIENCE_S, SETTLE_S
from services.tenants.model import NO_LIMITS, Tenant, TenantLimits
from tests.support.limits_bench import LimitsBench, cancel_all, limited


async def held(bench: LimitsBench, at: int, tenant: Tenant, num: int) -> list[asyncio.Task[bool]]:
    """So many requests that run for ever at router `at`, or fewer where they are refused."""
    tasks = [bench.start(at, tenant, 1e6) for _ in range(num)]
    await bench.pass_time(PATIENCE_S + 0.2)
    return tasks


@pytest.mark.parametrize("limit", [1, 2, 4, 10, 64])
@pytest.mark.parametrize("seed", range(3))
async def test_the_limit_is_never_exceeded_and_reached(limit: int, seed: int) -> None:
    bench, rng = LimitsBench(), random.Random(seed)
    acme = limited("acme", requests_in_flight=limit)
    taken = 0.0
    ends_s = bench.now_s + 10.0

    async def client(at: int) -> None:
        while bench.now_s < ends_s:
            if not await bench.request(at, acme, rng.choice([0.05, 0.2, 1.0])):
                await bench.sleep(0.1)

    clients = [asyncio.create_task(client(number % 3)) for number in range(2 * limit + 3)]
    for _ in range(900):
        await bench.pass_time(0.01)
        assert bench.in_flight["acme"] <= limit
        taken += bench.in_flight["acme"] / 900
    await bench.pass_time(3.0)
    await asyncio.gather(*clients)
    assert taken >= 0.9 * limit


CHAOS_SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 200))]


@pytest.mark.parametrize("seed", CHAOS_SEEDS)
async def test_neither_deaths_nor_short_outages_nor_late_asks_let_the_limit_be_exceeded(seed: int) -> None:
    bench, rng = LimitsBench(), random.Random(seed)
    acme = limited("acme", requests_in_flight=rng.choice([1, 3, 8, 30]))
    limit = acme.limits.requests_in_flight
    assert limit is not None
    running: list[list[asyncio.Task[bool]]] = [[], [], []]
    outage_ends_s = 0.0
    for _ in range(1_200):
        chance = rng.random()
        at = rng.randrange(3)
        if chance < 0.3:
            running[at].append(bench.start(at, acme, rng.choice([0.05, 0.3, 2.0])))
        elif chance < 0.32 and running[at]:
            rng.choice(running[at]).cancel()
        elif chance < 0.325:
            await cancel_all(running[at])
            running[at] = []
            bench.replace_router(at)
        elif chance < 0.33 and bench.now_s > outage_ends_s + 2.0:
            bench.store.reachable, bench.store.late = False, rng.random() < 0.5
            outage_ends_s = bench.now_s + rng.uniform(0.05, 0.8 * PATIENCE_S)
        if not bench.store.reachable and bench.now_s >= outage_ends_s:
            bench.store.reachable = True
            await bench.pass_time(rng.choice([0.0, 0.1]))
            await bench.store.unstick()
        await bench.pass_time(0.01)
        assert bench.in_flight["acme"] <= limit
    await cancel_all([task for tasks in running for task in tasks])
    bench.store.reachable = True
    await bench.pass_time(PLACES_LEASE_S + 1.0)
    tasks = await held(bench, 0, acme, limit)
    assert bench.in_flight["acme"] == limit
    await cancel_all(tasks)


async def test_routers_that_come_and_go_in_number_share_one_limit() -> None:
    bench = LimitsBench(num_routers=20)
    acme = limited("acme", requests_in_flight=10)
    tasks = [task for at in range(20) for task in await held(bench, at, acme, 2)]
    assert bench.in_flight["acme"] == bench.most_in_flight["acme"] == 10
    await cancel_all(tasks)
    await bench.pass_time(0.5)
    tasks = await held(bench, 19, acme, 11)
    assert bench.in_flight["acme"] == bench.most_in_flight["acme"] == 10
    await cancel_all(tasks)


async def test_an_idle_router_has_given_everything_back_within_about_a_second() -> None:
    bench = LimitsBench()
    acme = limited("acme", requests_in_flight=64, tokens_per_s=1_000)
    assert all(await asyncio.gather(*(_done(bench, 0, acme) for _ in range(40))))
    await bench.pass_time(1.1)
    tasks = [bench.start(1, acme, 1e6) for _ in range(64)]
    await bench.settle()
    assert bench.in_flight["acme"] == 64
    await cancel_all(tasks)


async def _done(bench: LimitsBench, at: int, tenant: Tenant) -> bool:
    task = asyncio.create_task(bench.request(at, tenant, 0.1, uncached=1, made=1))
    while not task.done():
        await bench.pass_time(0.01)
    return await task


async def test_no_trip_to_the_store_where_a_place_is_at_hand() -> None:
    bench = LimitsBench(num_routers=1)
    acme = limited("acme", requests_in_flight=64, tokens_per_s=1_000_000)
    await _done(bench, 0, acme)
    before, start_s = bench.store.num_exchanges, bench.now_s
    for _ in range(300):
        assert await _done(bench, 0, acme)
    renewals = (bench.now_s - start_s) / 0.5
    assert bench.store.num_exchanges - before <= 1.2 * renewals + 2


async def test_tenants_without_limits_never_ask() -> None:
    bench = LimitsBench()
    free = limited("free")
    assert free.limits == NO_LIMITS
    tasks = [bench.start(0, free, 1e6) for _ in range(500)]
    await bench.settle()
    assert bench.in_flight["free"] == 500
    await cancel_all(tasks)


async def test_what_a_dead_router_had_comes_back() -> None:
    bench = LimitsBench()
    acme = limited("acme", requests_in_flight=8)
    lost = await held(bench, 0, acme, 6)
    bench.dead.add(0)
    await cancel_all(lost)
    living = await held(bench, 1, acme, 8)
    assert bench.in_flight["acme"] == 2
    await bench.pass_time(PLACES_LEASE_S)
    living += await held(bench, 1, acme, 8)
    assert bench.in_flight["acme"] == 8
    await cancel_all(living)


async def test_a_slow_renewal_costs_nothing() -> None:
    bench = LimitsBench()
    acme = limited("acme", requests_in_flight=8)
    mine = await held(bench, 0, acme, 8)
    bench.dead.add(0)
    await bench.pass_time(PLACES_LEASE_S - 2.0)
    theirs = await held(bench, 1, acme, 1)
    assert bench.in_flight["acme"] == 8
    bench.dead.clear()
    await bench.pass_time(PLACES_LEASE_S)
    theirs += await held(bench, 1, acme, 1)
    assert bench.in_flight["acme"] == 8
    await cancel_all(mine + theirs)


async def test_a_router_that_stood_still_uses_no_place_of_a_lease_that_has_run_out() -> None:
    bench = LimitsBench()
    acme = limited("acme", requests_in_flight=64)
    await _done(bench, 0, acme)
    bench.dead.add(0)
    await bench.pass_time(PLACES_LEASE_S)
    theirs = await held(bench, 1, acme, 64)
    assert bench.in_flight["acme"] == 64
    late = bench.start(0, acme, 1e6)
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.in_flight["acme"] == 64
    bench.dead.clear()
    await bench.pass_time(1.0)
    assert bench.in_flight["acme"] == 64
    await cancel_all([late, *theirs])


async def test_a_store_that_hiccups_is_waited_for() -> None:
    bench = LimitsBench()
    acme = limited("acme", requests_in_flight=3)
    bench.store.reachable = False
    tasks = [bench.start(at, acme, 1e6) for at in range(3)]
    await bench.pass_time(PATIENCE_S - 0.5)
    assert bench.in_flight["acme"] == 0
    bench.store.reachable = True
    await bench.pass_time(0.2)
    assert bench.in_flight["acme"] == 3
    assert not any(router.is_degraded for router in bench.routers)
    await cancel_all(tasks)


async def test_without_the_store_each_router_goes_on_with_its_share_and_says_so() -> None:
    bench = LimitsBench()
    acme = limited("acme", requests_in_flight=12, tokens_per_s=600)
    await bench.pass_time(1.0)
    bench.store.reachable = False
    await bench.pass_time(2.0)
    tasks = []
    for at in range(3):
        tasks += await held(bench, at, acme, 12)
        assert bench.in_flight["acme"] == 4 * (at + 1)
    assert all(router.is_degraded for router in bench.routers)
    await cancel_all(tasks)
    await bench.pass_time(1.0)

    bench.store.reachable = True
    await bench.pass_time(1.0)
    assert not any(router.is_degraded for router in bench.routers)
    tasks = await held(bench, 2, acme, 13)
    assert bench.in_flight["acme"] == 12
    await cancel_all(tasks)


async def test_a_router_alone_from_the_start_takes_no_more_than_the_limit() -> None:
    bench = LimitsBench(num_routers=1)
    acme = limited("acme", requests_in_flight=5)
    bench.store.reachable = False
    tasks = await held(bench, 0, acme, 9)
    assert bench.in_flight["acme"] == 5
    await cancel_all(tasks)


async def test_a_store_that_lost_its_data_grants_nobody_what_others_hold() -> None:
    bench = LimitsBench()
    acme = limited("acme", requests_in_flight=12)
    first = await held(bench, 0, acme, 12)
    bench.store.inner.wipe()
    second = [bench.start(1, acme, 1e6) for _ in range(12)]
    await bench.pass_time(SETTLE_S - 0.2)
    assert bench.routers[1].is_degraded
    assert bench.in_flight["acme"] <= 12 + 4
    await bench.pass_time(SETTLE_S)
    assert not any(router.is_degraded for router in bench.routers)
    await cancel_all(first + second)
    await bench.pass_time(1.0)
    third = await held(bench, 2, acme, 13)
    assert bench.in_flight["acme"] == 12
    await cancel_all(third)


async def test_a_changed_limit_holds_from_the_next_request_on() -> None:
    bench = LimitsBench()
    acme = limited("acme", requests_in_flight=4)
    tasks = await held(bench, 0, acme, 4)
    wider = replace(acme, limits=TenantLimits(requests_in_flight=6))
    tasks += await held(bench, 1, wider, 4)
    assert bench.in_flight["acme"] == 6
    narrower = replace(acme, limits=TenantLimits(requests_in_flight=2))
    refused = await held(bench, 2, narrower, 1)
    assert bench.in_flight["acme"] == 6
    free = await held(bench, 2, replace(acme, limits=NO_LIMITS), 1)
    assert bench.in_flight["acme"] == 7
    await cancel_all(tasks + refused + free)


@pytest.mark.parametrize("seed", range(5))
async def test_a_storm_of_cancels_leaves_no_place_taken(seed: int) -> None:
    bench, rng = LimitsBench(), random.Random(seed)
    acme = limited("acme", requests_in_flight=5, tokens_per_s=500)
    tasks: list[asyncio.Task[bool]] = []
    for _ in range(300):
        tasks.append(asyncio.create_task(bench.request(rng.randrange(3), acme, 0.3, uncached=3, made=2)))
        if rng.random() < 0.6:
            rng.choice(tasks).cancel()
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        else:
            await bench.pass_time(0.01)
        assert bench.in_flight["acme"] <= 5
    await cancel_all(tasks)
    await bench.pass_time(2.0)
    tasks = await held(bench, 0, acme, 5)
    assert bench.in_flight["acme"] == 5
    await cancel_all(tasks)


@pytest.mark.parametrize(
    ("uncached", "made", "max_made"),
    [
        (64, 16, 16),
        (0, 40, 512),
        pytest.param(120, 4, 512, marks=pytest.mark.nightly),
        (300, 100, 100),
        pytest.param(5, 1, 1, marks=pytest.mark.nightly),
    ],
)
async def test_tokens_per_second_are_used_up_and_not_exceeded_in_any_ten_seconds(
    uncached: int, made: int, max_made: int
) -> None:
    bench, rate = LimitsBench(), 1_000
    acme = limited("acme", tokens_per_s=rate)
    start_s = bench.now_s

    async def client(at: int) -> None:
        while bench.now_s < start_s + 16.0:
            if not await bench.request(at, acme, 0.3, uncached, made, max_made):
                await bench.sleep(bench.refused[-1].retry_after_s)

    clients = [asyncio.create_task(client(number % 3)) for number in range(60)]
    await bench.pass_time(18.0)
    await asyncio.gather(*clients)
    for begin in range(12):
        begin_s = start_s + begin / 2
        used = bench.used(begin_s, begin_s + 10.0)
        assert used <= 1.1 * rate * 10
        assert used >= 0.85 * rate * 10


async def test_the_retry_time_is_when_there_are_tokens_again() -> None:
    bench = LimitsBench()
    acme = limited("acme", tokens_per_s=100)
    task = asyncio.create_task(bench.request(0, acme, 0.1, uncached=540))
    await bench.pass_time(0.1)
    assert await task
    for at in range(3):
        refused = asyncio.create_task(bench.request(at, acme, 0.1, uncached=10))
        await bench.pass_time(0.02)
        assert not await refused
    waits = [error.retry_after_s for error in bench.refused]
    assert all(4.5 <= wait_s <= 5.0 for wait_s in waits)
    await bench.pass_time(waits[-1])
    again = asyncio.create_task(bench.request(2, acme, 0.1, uncached=10))
    await bench.pass_time(0.15)
    assert await again


async def test_a_tenant_at_its_limits_takes_nothing_from_another_and_is_told_nothing_of_it() -> None:
    def refusal_beside(others: int) -> str:
        async def asked() -> str:
            bench = LimitsBench()
            acme, globex = (limited(name, requests_in_flight=4, tokens_per_s=50) for name in ("acme", "globex"))
            tasks = await held(bench, 0, globex, others)
            assert bench.in_flight["globex"] == min(4, others)
            tasks += await held(bench, 0, acme, 5)
            assert bench.in_flight["acme"] == 4
            await cancel_all(tasks)
            told = [(str(error), error.subject, error.retry_after_s) for error in bench.refused]
            return repr(told[-1])

        return asyncio.run(asked())

    alone, crowded = await asyncio.to_thread(refusal_beside, 0), await asyncio.to_thread(refusal_beside, 8)
    assert alone == crowded
