"""Faults as they happen: each begins at its time, is noted as a disturbance, ends by itself or when all is mended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cache_store.domain import ScopeKind, scope_name
from cache_store.errors import StemcacheError
from services.cluster.redis_roles import RedisRole
from services.tenants.api_key import parse
from services.tenants.purge import EVERYTHING, PartitionScope, PurgeScope
from tests.simulation.loop import Phase
from tests.simulation.oracle import Purged, own_scopes
from tests.simulation.parts import RouterInstance
from tests.simulation.plan import TENANTS, Fault, FaultKind, purged_partition
from tests.simulation.store_server import PLACE as STORE
from tests.simulation.store_server import Losses, ServerPhase

if TYPE_CHECKING:
    from tests.simulation.world import World

RESTART_S = 1.0
DRAIN_S = 3.0


class Faults:
    """Of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loop = world.loop
        self._ends: dict[int, Callable[[], None]] = {}
        """What mends each fault that lasts."""
        self._next = 0
        self._begin: dict[FaultKind, Callable[[Fault], None]] = {
            FaultKind.KILL_WORKER: self._kill_worker,
            FaultKind.LOSE_MACHINE: self._kill_worker,
            FaultKind.STOP_WORKER: self._stop_worker,
            FaultKind.REPLACE_STOPPED_WORKER: self._stop_worker,
            FaultKind.DRAIN_WORKER: self._drain_worker,
            FaultKind.KILL_ROUTER: self._kill_router,
            FaultKind.STOP_ROUTER: self._stop_router,
            FaultKind.CUT_ROUTER_WORKER: lambda fault: self._cut(fault, f"w{fault.worker}", f"r{fault.router}"),
            FaultKind.CUT_ROUTER_STORE: lambda fault: self._cut(fault, f"r{fault.router}", STORE),
            FaultKind.CUT_WORKER_STORE: lambda fault: self._cut(fault, f"w{fault.worker}", STORE),
            FaultKind.RESET: self._reset,
            FaultKind.STORE_DOWN: self._take_store_down,
            FaultKind.STORE_EMPTY: self._take_store_down,
            FaultKind.STORE_OLD: self._take_store_down,
            FaultKind.STORE_STOPPED: self._stop_store,
            FaultKind.STORE_REFUSES: self._refuse,
            FaultKind.LOSSES: self._lose,
            FaultKind.SLOW_LINE: self._slow_down,
            FaultKind.CLOCK_JUMP: self._jump,
            FaultKind.PURGE: self._purge,
            FaultKind.PURGE_PARTITION: self._purge,
            FaultKind.ROTATE: self._purge,
            FaultKind.REVOKE_KEY: self._revoke,
        }

    def begin(self, fault: Fault) -> None:
        """It happens now."""
        self._world.trace.note("-", f"{fault.kind} {fault}")
        self._begin[fault.kind](fault)

    def mend_all(self) -> None:
        """Whatever still lasts ends; what is down comes up again, and nothing new begins."""
        for number in list(self._ends):
            self._end(number)
        self.bring_up()

    def bring_up(self) -> None:
        """Starts what is down."""
        for number in range(len(self._world.workers)):
            self._restart_worker(number)
        for number in range(len(self._world.routers)):
            self._restart_router(number)

    def _lasts(self, seconds: float, end: Callable[[], None]) -> None:
        self._next += 1
        self._ends[self._next] = end
        self._loop.outside(seconds, self._end, self._next)

    def _end(self, number: int) -> None:
        end = self._ends.pop(number, None)
        if end is not None:
            end()

    # Workers.

    def _kill_worker(self, fault: Fault) -> None:
        instance = self._world.live_worker(fault.worker)
        if instance is None:
            return
        self._world.disturbances.note(f"w{fault.worker}", RESTART_S)
        instance.process.kill()
        self._world.network.note_killed(instance.process, is_noticed=fault.kind is FaultKind.KILL_WORKER)
        self._lasts(RESTART_S, lambda: self._restart_worker(fault.worker))

    def _restart_worker(self, number: int) -> None:
        if self._world.live_worker(number) is None:
            self._world.disturbances.note(f"w{number}", 0.0)
            self._world.start_worker(number)

    def _stop_worker(self, fault: Fault) -> None:
        instance = self._world.live_worker(fault.worker)
        if instance is None or instance.process.phase is not Phase.RUNNING:
            return
        self._world.disturbances.note(f"w{fault.worker}", fault.seconds)
        instance.process.stop()
        self._world.network.note_stopped(instance.process, fault.seconds)
        if fault.kind is FaultKind.REPLACE_STOPPED_WORKER:
            replace_s = min(fault.seconds * 0.7, 4.0)
            self._lasts(replace_s, lambda: self._world.start_worker(fault.worker))
        self._lasts(fault.seconds, instance.process.go_on)

    def _drain_worker(self, fault: Fault) -> None:
        instance = self._world.live_worker(fault.worker)
        if instance is None or instance.process.phase is not Phase.RUNNING:
            return
        self._world.disturbances.note(f"w{fault.worker}", DRAIN_S + RESTART_S)
        self._world.watch(instance.process.spawn(instance.leave(DRAIN_S), "drain"))
        self._lasts(DRAIN_S + RESTART_S, lambda: self._restart_worker(fault.worker))

    # Routers.

    def _kill_router(self, fault: Fault) -> None:
        instance = self._world.live_router(fault.router)
        if instance is None:
            return
        self._world.disturbances.note(f"r{fault.router}", RESTART_S)
        instance.process.kill()
        self._world.network.note_killed(instance.process, is_noticed=True)
        self._lasts(RESTART_S, lambda: self._restart_router(fault.router))

    def _restart_router(self, number: int) -> None:
        if self._world.live_router(number) is None:
            self._world.disturbances.note(f"r{number}", 0.0)
            self._world.start_router(number)

    def _stop_router(self, fault: Fault) -> None:
        instance = self._world.live_router(fault.router)
        if instance is None or instance.process.phase is not Phase.RUNNING:
            return
        self._world.disturbances.note(f"r{fault.router}", fault.seconds)
        instance.process.stop()
        self._world.network.note_stopped(instance.process, fault.seconds)
        self._lasts(fault.seconds, instance.process.go_on)

    # Lines.

    def _cut(self, fault: Fault, one: str, other: str) -> None:
        if other != STORE or one.startswith("w"):
            self._world.disturbances.note(one, fault.seconds, other)
        self._world.network.cut(one, other)
        self._lasts(fault.seconds, lambda: self._world.network.heal(one, other))

    def _reset(self, fault: Fault) -> None:
        worker, router = f"w{fault.worker}", f"r{fault.router}"
        self._world.disturbances.note(worker, 0.0, router)
        self._world.network.reset(worker, router)

    def _slow_down(self, fault: Fault) -> None:
        lines = ((f"w{fault.worker}", f"r{fault.router}"), (f"w{fault.worker}", STORE), (f"r{fault.router}", STORE))
        one, other = lines[fault.number % len(lines)]
        if one.startswith("w"):
            self._world.disturbances.note(one, fault.seconds, other)
        self._world.network.slow_down(one, other, 20.0 + fault.number % 100)
        self._lasts(fault.seconds, lambda: self._world.network.slow_down(one, other, 1.0))

    def _lose(self, fault: Fault) -> None:
        place = (f"w{fault.worker}", f"r{fault.router}")[fault.number % 2]
        part = 0.1 + fault.number % 5 / 10
        kinds = (Losses(requests=part), Losses(replies=part), Losses(late=part), Losses(part / 3, part / 3, part / 3))
        if place.startswith("w"):
            self._world.disturbances.note(place, fault.seconds, STORE)
        self._world.server.losses[place] = kinds[fault.number // 2 % len(kinds)]
        self._lasts(fault.seconds, lambda: self._drop_losses(place))

    def _drop_losses(self, place: str) -> None:
        self._world.server.losses.pop(place, None)

    # The store.

    def _take_store_down(self, fault: Fault) -> None:
        server = self._world.server
        if server.phase is not ServerPhase.UP:
            return
        server.go_down()
        end = {
            FaultKind.STORE_DOWN: server.go_on,
            FaultKind.STORE_EMPTY: server.restart_empty,
            FaultKind.STORE_OLD: lambda: server.restart_old((0, 0, fault.number % 8)[fault.number % 3]),
        }[fault.kind]
        self._lasts(fault.seconds, end)

    def _stop_store(self, fault: Fault) -> None:
        if self._world.server.phase is ServerPhase.UP:
            self._world.server.stop()
            self._lasts(fault.seconds, self._world.server.go_on)

    def _refuse(self, fault: Fault) -> None:
        one = (RedisRole.OPERATOR, RedisRole.WORKER)[fault.number // 3 % 2]
        roles = ((RedisRole.ROUTER,), (one,), tuple(RedisRole))[fault.number % 3]
        self._world.server.refused |= set(roles)
        self._lasts(fault.seconds, self._world.server.refused.clear)

    # Clocks and the operator.

    def _jump(self, fault: Fault) -> None:
        lives = self._world.live_worker(fault.worker) if fault.number % 2 else self._world.live_router(fault.router)
        if lives is not None:
            lives.clock.skew_s += (-1) ** fault.number * (fault.number % 4)

    def _purge(self, fault: Fault) -> None:
        router = self._world.live_router(fault.router)
        if router is not None and router.is_up:
            self._world.watch(router.process.spawn(self._do_purge(fault, router), "purge"))

    async def _do_purge(self, fault: Fault, router: RouterInstance) -> None:
        world, name = self._world, TENANTS[fault.tenant]
        partition = purged_partition(fault)
        begun_s = self._loop.time()
        try:
            tenant = router.directory.tenant_by_name(name)
            scope: PurgeScope = EVERYTHING if partition is None else PartitionScope(partition)
            name_of = None if partition is None else scope_name(tenant.secret, ScopeKind.PARTITION, partition)
            roots = own_scopes(world.oracle, tenant.id, name_of)
            if fault.kind is FaultKind.ROTATE:
                _, receipt = await router.purges.rotate(name)
            else:
                receipt = await router.purges.purge(tenant.id, scope)
        except StemcacheError as error:
            world.trace.note(router.process.name, f"purge failed: {error}")
            return
        acknowledged = {answer.incarnation for answer in receipt.workers if answer.acknowledgement is not None}
        world.trace.note(router.process.name, f"purge of {name}/{partition}: {len(acknowledged)} acknowledged")
        world.oracle.purges.append(
            Purged(name, partition, f"r{fault.router}", begun_s, self._loop.time(), frozenset(acknowledged), roots)
        )

    def _revoke(self, fault: Fault) -> None:
        """The second key of a tenant."""
        router = self._world.live_router(fault.router)
        if router is not None and router.is_up:
            self._world.watch(router.process.spawn(self._do_revoke(fault, router), "revoke"))

    async def _do_revoke(self, fault: Fault, router: RouterInstance) -> None:
        world, name = self._world, TENANTS[fault.tenant]
        key = parse(world.second_keys[name])
        assert key is not None
        try:
            await router.sync.sync_once()
            done = await router.store.revoke_key(key.key_id)
            await router.sync.adopt(done.state)
        except StemcacheError as error:
            world.trace.note(router.process.name, f"revoking failed: {error}")
            return
        world.trace.note(router.process.name, f"the second key of {name} is revoked")
        world.revoked.add(name)
