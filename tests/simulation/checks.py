"""What holds when everything has been mended and nobody asks: nothing is left over, all copies agree, all is served."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cache_store.digest import DIGEST_BYTES
from cache_store.redis_keys import blocks_key
from services.router.speculations import SETTLED_S
from services.tenants.quota_publisher import REFRESH_S
from tests.simulation.loop import Phase
from tests.simulation.oracle import BLOCK_SIZE, WrongError
from tests.simulation.parts import RouterInstance, WorkerInstance
from tests.simulation.plan import TENANTS, Ask

if TYPE_CHECKING:
    from tests.simulation.world import World


async def all_is_well(world: World) -> None:
    """Ends the run where something is not."""
    for router in _routers(world):
        _router_is_clean(world, router)
    for worker in _workers(world):
        _worker_is_clean(world, worker)
    _zombies_have_ended(world)
    await _control_data_agree(world)
    await _everybody_is_served(world)
    await _revoked_keys_stay_revoked(world)
    await asyncio.sleep(1.0)
    for worker in _workers(world):
        _index_tells_the_truth(world, worker)
    for router in _routers(world):
        _copy_tells_the_truth(world, router)


def nothing_is_promised(world: World) -> None:
    """A router at which nothing runs expects blocks only where they have just been computed."""
    now_s = world.loop.time()
    for lives in world.routers:
        router = lives[-1]
        if router.process.phase is not Phase.RUNNING or not router.is_up or router.table.num_running:
            continue
        router.index.replica.check_invariants()
        for entry in router.speculations._live.values():
            if entry.expires_s > now_s + SETTLED_S:
                problem = f"{router.process.name} expects blocks for {entry.expires_s - now_s:.1f} s, and nothing runs"
                world.trace.note("oracle", f"WRONG: {problem}")
                world.fail(WrongError(problem))


def _routers(world: World) -> list[RouterInstance]:
    return [lives[-1] for lives in world.routers]


def _workers(world: World) -> list[WorkerInstance]:
    return [lives[-1] for lives in world.workers]


def _require(world: World, condition: object, what: str) -> None:
    if not condition:
        world.oracle.wrong(what)


def _router_is_clean(world: World, router: RouterInstance) -> None:
    name = router.process.name
    _require(world, router.is_alive and router.is_up, f"{name} is not up")
    _require(world, router.table.num_running == 0, f"{router.table.num_running} requests still run at {name}")
    router.table.check_invariants()
    router.speculations.leading(b"", "", b"")  # type: ignore[arg-type]  # lets expire what does
    router.speculations.check_invariants()
    router.index.replica.check_invariants()
    at_work = [view.record.worker_id for view in router.view.snapshot() if view.pending_requests]
    _require(world, not at_work, f"{name} thinks that requests run at {at_work}")
    _require(world, not router.speculations._live, f"{name} keeps prompts on their way to workers")
    _require(world, not router.directory.is_stale, f"the control data of {name} are old")
    _require(world, router.view.is_reachable, f"{name} does not reach the registry")
    living = {worker.host.incarnation for worker in _workers(world) if worker.host is not None}
    seen = set(router.view.incarnations())
    _require(world, seen == living, f"{name} sees {sorted(seen)}, alive are {sorted(living)}")


def _worker_is_clean(world: World, worker: WorkerInstance) -> None:
    name, host = worker.process.name, worker.host
    if host is None or not host.healthy:
        world.oracle.wrong(f"{name} does not run")
        return
    engine = host.thread.engine  # type: ignore[attr-defined]
    engine.check_invariants()
    _require(world, host.thread.num_open == 0, f"{host.thread.num_open} requests are open at {name}")
    _require(world, engine.num_held_blocks == 0, f"{engine.num_held_blocks} blocks are held at {name}")
    _require(world, not engine.has_work, f"{name} has work left")


def _zombies_have_ended(world: World) -> None:
    for lives in world.workers:
        for each in lives[:-1]:
            _require(
                world,
                each.process.phase is Phase.DEAD or each.has_ended,
                f"{each.process.name} runs on, though {lives[-1].process.name} has taken its place",
            )


async def _everybody_is_served(world: World) -> None:
    """Each router answers, the second time out of the cache; another tenant's equal prompt misses."""
    assert world.client is not None
    client = world.client
    for router in range(len(world.routers)):
        for tenant in (router, router + 1):
            for turn in range(2 if tenant == router else 1):
                number = 10_000 + router * 100 + tenant * 10 + turn
                prompt = tuple((7 * router + at) % 991 + 1 for at in range(4 * BLOCK_SIZE + 1))
                ask = Ask(0.0, number, tenant, "probe", prompt, 1, 1, 0.0, None, None, 0.0, router, 0)
                before = dict(client.outcomes)
                hits = world.oracle.num_hits
                await world.watch(client.process.spawn(client.probe(ask), "probe"))
                _require(
                    world,
                    client.outcomes["OK"] == before.get("OK", 0) + 1,
                    f"{TENANTS[tenant]} is not served by r{router} when all is well",
                )
                if turn:
                    _require(world, world.oracle.num_hits > hits, f"r{router} sends {TENANTS[tenant]} to a miss")
                await asyncio.sleep(0.25)


async def _revoked_keys_stay_revoked(world: World) -> None:
    """Whatever became of the store; the other second keys are taken."""
    assert world.client is not None
    if not world.revoked:
        return
    for router in range(len(world.routers)):
        for tenant in TENANTS:
            asking = world.client.is_let_in(router, world.second_keys[tenant])
            is_let_in = await world.watch(world.client.process.spawn(asking, "key"))
            _require(
                world,
                is_let_in != (tenant in world.revoked),
                f"r{router} {'takes' if is_let_in else 'refuses'} the second key of {tenant}",
            )


def _index_tells_the_truth(world: World, worker: WorkerInstance) -> None:
    assert worker.host is not None
    truth = {
        tag: {digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)}
        for tag, digests in worker.host.thread.engine.snapshot().items()  # type: ignore[attr-defined]
        if digests
    }
    incarnation = worker.host.incarnation
    for tag, digests in truth.items():
        told = world.server.store.members(blocks_key(tag, incarnation))
        _require(
            world, told == digests, f"the index tells {len(told)} blocks of {worker.process.name}'s {len(digests)}"
        )
    keys = [key for key in world.server.store.names() if key.endswith(f":blocks:{incarnation}".encode())]
    _require(world, len(keys) == len(truth), f"the index tells {len(keys)} domains of {len(truth)}")


def _copy_tells_the_truth(world: World, router: RouterInstance) -> None:
    for tag, domain in router.index.replica._domains.items():
        for incarnation, held in domain.items():
            if held.changes is not None:
                continue
            told = world.server.store.members(blocks_key(tag, incarnation))
            _require(
                world,
                told == held.digests,
                f"{router.process.name} has {len(held.digests)} blocks in its copy where the index has {len(told)}",
            )
    stats = router.index.stats
    num_workers = len(world.workers)
    _require(world, stats.num_followed == num_workers, f"{router.process.name} follows {stats.num_followed} workers")


async def _control_data_agree(world: World) -> None:
    """Workers may hold on to what another store's router published, until it is published anew."""
    generations = {router.directory.generation for router in _routers(world)}
    _require(world, len(generations) == 1, f"routers have control data of generations {sorted(generations)}")
    for _ in range(round(REFRESH_S) + 2):
        told = {worker.host.record().quota_generation for worker in _workers(world) if worker.host is not None}
        if told == generations:
            return
        await asyncio.sleep(1.0)
    world.oracle.wrong(f"workers have quotas of generations {sorted(told)}, routers {sorted(generations)}")
