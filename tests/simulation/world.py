"""One run: the cluster of a plan comes up, is asked, is disturbed, is left alone, and then everything must be well."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cache_store.tokens import PackedTokens
from services.tenants.redis_store import ControlStore
from tests.simulation import checks
from tests.simulation.client import Client, prompt_of
from tests.simulation.disturbances import Disturbances
from tests.simulation.engine_thread import ProcessClock
from tests.simulation.faults import Faults
from tests.simulation.loop import START_S as LOOP_START_S
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import Network
from tests.simulation.oracle import Oracle, WrongError
from tests.simulation.parts import MASTER, MemorySnapshot, RouterInstance, WorkerInstance, worker_config
from tests.simulation.plan import START_S, TENANTS, Ask, Plan, make_plan
from tests.simulation.store_server import SimulatedRedis, StoreServer
from tests.simulation.surroundings import surrounded
from tests.simulation.trace import Trace
from worker.digest_runner import Durations

SETTLE_S = 3.5
"""After everything is mended: leases, backed off writers and stale control data come right."""

ROUTER_PORT = 50_000
WORKER_PORT = 60_000


@dataclass(frozen=True)
class Result:
    """Of a run."""

    seed: int
    digest: str
    lines: list[str]
    problem: str | None
    outcomes: dict[str, int]
    num_hits: int
    num_tokens: int
    num_resumed: int
    num_steps: int


def run_seed(seed: int) -> Result:
    """Runs a seed."""
    return run_plan(make_plan(seed), seed)


def run_plan(plan: Plan, seed: int) -> Result:
    """Runs a plan; what it does not say follows from the seed."""
    loop = VirtualLoop()
    trace = Trace(loop.time, LOOP_START_S)
    network = Network(loop, seed, trace)
    problem: str | None = None
    digest, lines = "", trace.lines
    with _without_garbage_collection():
        asyncio.set_event_loop(loop)
        world = World(loop, network, trace, plan, seed)
        try:
            with surrounded(seed, plan.stream_entries, network, trace):
                try:
                    loop.run_until_complete(world.run())
                finally:
                    digest, lines = trace.digest, list(trace.lines)
                    loop.finish()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            if not isinstance(error, WrongError):
                import traceback

                problem += "\n" + "".join(traceback.format_exception(error))
        finally:
            asyncio.set_event_loop(None)
    oracle = world.oracle
    outcomes = dict(world.client.outcomes) if world.client else {}
    return Result(
        seed,
        digest,
        lines,
        problem,
        outcomes,
        oracle.num_hits,
        oracle.num_tokens,
        oracle.num_resumed,
        loop.num_steps,
    )


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Nothing of a dead process may be cleaned away while a run lasts: its `finally` would run."""
    gc.collect()  # the run before, whose world nobody holds any more
    if not gc.get_freeze_count():
        gc.freeze()  # the program, which need not be looked through again; never a run, which would stay for ever
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class World:
    """Everything there is in a run."""

    def __init__(self, loop: VirtualLoop, network: Network, trace: Trace, plan: Plan, seed: int) -> None:
        self.loop = loop
        self.network = network
        self.trace = trace
        self.plan = plan
        self.seed = seed
        self.oracle = Oracle(loop, trace)
        self.server = StoreServer(network, seed)
        self.disturbances = Disturbances(loop, plan.num_workers)
        self.workers: list[list[WorkerInstance]] = [[] for _ in range(plan.num_workers)]
        """All lives of each."""
        self.routers: list[list[RouterInstance]] = [[] for _ in range(plan.num_routers)]
        self.client: Client | None = None
        self.keys: dict[str, str] = {}
        self.second_keys: dict[str, str] = {}
        self.revoked: set[str] = set()
        """Tenants whose second key was revoked."""
        self._snapshots = [MemorySnapshot() for _ in range(plan.num_routers)]
        self._skews = random.Random(f"skews/{seed}")
        self._pending: dict[asyncio.Task[Any], None] = {}
        self._failed: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """From the beginning to the end."""
        self._failed = self.loop.create_future()
        story = asyncio.ensure_future(self._story())
        await asyncio.wait((story, self._failed), return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            self._failed.result()
        await story

    def watch(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """The run fails with it."""

        def note(done: asyncio.Task[Any]) -> None:
            if not done.cancelled() and isinstance(error := done.exception(), Exception):
                self.fail(error)

        task.add_done_callback(note)
        return task

    def fail(self, error: Exception) -> None:
        """Ends the run."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    def live_worker(self, number: int) -> WorkerInstance | None:
        """Its newest life, where it lives."""
        lives = self.workers[number]
        return lives[-1] if lives and lives[-1].is_alive else None

    def live_router(self, number: int) -> RouterInstance | None:
        """As a worker."""
        lives = self.routers[number]
        return lives[-1] if lives and lives[-1].is_alive else None

    def start_worker(self, number: int) -> None:
        """A new life."""
        place, life = f"w{number}", len(self.workers[number])
        is_free = not any(each.is_alive for each in self.workers[number])
        process = Process(self.loop, place, f"{place}.{life}")
        config = worker_config(place, self.plan.num_blocks, WORKER_PORT + number if is_free else 0)
        durations = Durations(self.plan.step_s, self.plan.token_s)
        instance = WorkerInstance(process, config, durations, self.oracle)
        instance.clock.skew_s = self._skews.uniform(-0.5, 0.5)
        instance.watch_task = self.watch
        self.workers[number].append(instance)
        instance.start(self.server)

    def start_router(self, number: int) -> None:
        """A new life, with the snapshot of the one before."""
        place, life = f"r{number}", len(self.routers[number])
        process = Process(self.loop, place, f"{place}.{life}")
        snapshot = self._snapshots[number]
        seed = f"router/{self.seed}/{process.name}"
        instance = RouterInstance(process, ROUTER_PORT, seed, snapshot, self.server, self.oracle)
        instance.clock.skew_s = self._skews.uniform(-0.5, 0.5)
        instance.watch_task = self.watch
        self.routers[number].append(instance)
        instance.start()

    async def _story(self) -> None:
        await self._come_up()
        faults = Faults(self)
        for fault in self.plan.faults:
            self.loop.outside(LOOP_START_S + fault.at_s - self.loop.time(), faults.begin, fault)
        await self._ask_all()
        await asyncio.sleep(max(0.0, LOOP_START_S + self.plan.ends_s - self.loop.time()))
        self.trace.note("-", "everything is mended")
        faults.mend_all()
        if self._pending:
            await asyncio.wait(list(self._pending))
        await asyncio.sleep(0.5)
        faults.bring_up()
        await asyncio.sleep(SETTLE_S)
        await checks.all_is_well(self)

    async def _come_up(self) -> None:
        operator = Process(self.loop, "operator", "operator")
        await self.watch(operator.spawn(self._make_tenants(), "tenants"))
        for number in range(self.plan.num_routers):
            self.start_router(number)
        for number in range(self.plan.num_workers):
            self.start_worker(number)
        addresses = [f"r{number}:{ROUTER_PORT}" for number in range(self.plan.num_routers)]
        process = Process(self.loop, "client", "client")
        self.client = Client(process, self.keys, addresses, self.oracle, self.disturbances)
        self.client.note_end = lambda: self.loop.outside(0.05, checks.nothing_is_promised, self)
        await asyncio.sleep(max(0.0, LOOP_START_S + START_S - self.loop.time()))

    async def _make_tenants(self) -> None:
        redis: Any = SimulatedRedis(self.server)
        store = ControlStore(redis, MASTER, ProcessClock(self.loop))
        for name in TENANTS:
            await store.create_tenant(name)
            self.keys[name] = (await store.create_key(name)).value.text
            self.second_keys[name] = (await store.create_key(name)).value.text

    async def _ask_all(self) -> None:
        asked: dict[int, tuple[Ask, PackedTokens]] = {}
        assert self.client is not None
        for ask in self.plan.asks:
            await asyncio.sleep(max(0.0, LOOP_START_S + ask.at_s - self.loop.time()))
            prompt = prompt_of(ask, asked.get(ask.number - ask.goes_on) if ask.goes_on else None, self.oracle)
            asked[ask.number] = (ask, prompt)
            self.trace.note("client", f"request {ask.number} of {TENANTS[ask.tenant]}/{ask.partition} begins")
            task = self.watch(self.client.process.spawn(self.client.run(ask, prompt), f"request {ask.number}"))
            self._pending[task] = None
            task.add_done_callback(lambda done: self._pending.pop(done, None))
