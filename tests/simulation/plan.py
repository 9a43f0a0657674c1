"""What happens in a run: the cluster, what is sent, and what goes wrong when. All of it drawn from the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from tests.simulation.oracle import VOCAB_SIZE

START_S = 1.6
"""Until then everything has come up."""

LONG_PART = 0.15
"""Of the seeds: those in which a store may be away for longer than control data are believed."""

TENANTS = ("acme", "globex", "initech")
PARTITIONS = ("", "alice")


class FaultKind(StrEnum):
    """What goes wrong, or is done by an operator."""

    KILL_WORKER = "kill-worker"
    LOSE_MACHINE = "lose-machine"
    STOP_WORKER = "stop-worker"
    REPLACE_STOPPED_WORKER = "replace-stopped-worker"
    DRAIN_WORKER = "drain-worker"
    KILL_ROUTER = "kill-router"
    STOP_ROUTER = "stop-router"
    CUT_ROUTER_WORKER = "cut-router-worker"
    CUT_ROUTER_STORE = "cut-router-store"
    CUT_WORKER_STORE = "cut-worker-store"
    RESET = "reset"
    STORE_DOWN = "store-down"
    STORE_EMPTY = "store-empty"
    STORE_OLD = "store-old"
    STORE_STOPPED = "store-stopped"
    STORE_REFUSES = "store-refuses"
    LOSSES = "losses"
    SLOW_LINE = "slow-line"
    CLOCK_JUMP = "clock-jump"
    PURGE = "purge"
    PURGE_PARTITION = "purge-partition"
    ROTATE = "rotate"
    REVOKE_KEY = "revoke-key"


_WEIGHTS = {
    FaultKind.KILL_WORKER: 5,
    FaultKind.LOSE_MACHINE: 2,
    FaultKind.STOP_WORKER: 4,
    FaultKind.REPLACE_STOPPED_WORKER: 4,
    FaultKind.DRAIN_WORKER: 2,
    FaultKind.KILL_ROUTER: 2,
    FaultKind.STOP_ROUTER: 2,
    FaultKind.CUT_ROUTER_WORKER: 3,
    FaultKind.CUT_ROUTER_STORE: 3,
    FaultKind.CUT_WORKER_STORE: 3,
    FaultKind.RESET: 3,
    FaultKind.STORE_DOWN: 3,
    FaultKind.STORE_EMPTY: 4,
    FaultKind.STORE_OLD: 4,
    FaultKind.STORE_STOPPED: 3,
    FaultKind.STORE_REFUSES: 2,
    FaultKind.LOSSES: 4,
    FaultKind.SLOW_LINE: 2,
    FaultKind.CLOCK_JUMP: 1,
    FaultKind.PURGE: 4,
    FaultKind.PURGE_PARTITION: 3,
    FaultKind.ROTATE: 2,
    FaultKind.REVOKE_KEY: 1,
}


PURGES = (FaultKind.PURGE, FaultKind.PURGE_PARTITION, FaultKind.ROTATE)


REFUSES_WORKERS = 4
"""`Fault.number` of a store that refuses workers alone."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One of them."""

    at_s: float
    kind: FaultKind
    worker: int
    router: int
    tenant: int
    seconds: float
    """How long it lasts, where it lasts."""
    number: int
    """Whatever else has to be chosen."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a client."""

    at_s: float
    number: int
    tenant: int
    partition: str
    prompt: tuple[int, ...]
    max_tokens: int
    num_samples: int
    temperature: float
    seed: int | None
    cancel_after_s: float | None
    read_pause_s: float
    """A slow reader's, after each message."""
    router: int
    goes_on: int
    """So many requests before it is the one after whose prompt and answer its own prompt comes; 0: after none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Of one run."""

    num_workers: int
    num_routers: int
    num_blocks: int
    step_s: float
    token_s: float
    ends_s: float
    stream_entries: int
    """That a stream of changes keeps at most: with few a reader soon misses some."""
    asks: tuple[Ask, ...]
    faults: tuple[Fault, ...]


def make_plan(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"plan/{seed}")
    is_long = rng.random() < LONG_PART
    ends_s = START_S + (rng.uniform(13.0, 17.0) if is_long else rng.uniform(3.5, 6.0))
    num_workers = rng.choice((2, 3, 3, 4))
    num_routers = rng.choice((1, 2, 2))
    num_faults = rng.choice((1, 2, 3, 4, 6) if is_long else (1, 2, 2, 3))
    kinds = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=num_faults)
    faults = sorted((_fault(rng, kind, ends_s, num_workers, num_routers) for kind in kinds), key=lambda each: each.at_s)
    asks = [*_bursts(rng, ends_s, num_routers), *(ask for fault in faults for ask in _around(rng, fault, num_routers))]
    asks.sort(key=lambda ask: ask.at_s)
    return Plan(
        num_workers=num_workers,
        num_routers=num_routers,
        num_blocks=rng.choice((60, 120, 240)),
        step_s=rng.choice((0.02, 0.1, 0.2)),
        token_s=rng.choice((0.0, 0.002)),
        ends_s=ends_s,
        stream_entries=rng.choice((2, 1_000)),
        asks=tuple(replace(ask, number=number) for number, ask in enumerate(asks)),
        faults=tuple(faults),
    )


def with_workers_refused(plan: Plan) -> Plan:
    """The same, but all that goes wrong is that the store refuses workers and no one else, for longer than they are
    believed without it; what is asked is asked again when their leases have run out."""
    again_s = 8.0
    fault = Fault(
        START_S + 0.5, FaultKind.STORE_REFUSES, 0, 0, 0, seconds=again_s + plan.ends_s, number=REFUSES_WORKERS
    )
    asks = [*plan.asks, *(replace(ask, at_s=ask.at_s + again_s) for ask in plan.asks)]
    asks.sort(key=lambda ask: ask.at_s)
    numbered = tuple(replace(ask, number=number) for number, ask in enumerate(asks))
    return replace(plan, ends_s=plan.ends_s + again_s, asks=numbered, faults=(fault,))


def purged_partition(fault: Fault) -> str | None:
    """Of a fault that is a purge; None: everything."""
    return PARTITIONS[fault.number % len(PARTITIONS)] if fault.kind is FaultKind.PURGE_PARTITION else None


def _fault(rng: random.Random, kind: FaultKind, ends_s: float, num_workers: int, num_routers: int) -> Fault:
    return Fault(
        at_s=rng.uniform(START_S + 0.5, ends_s - 1.0),
        kind=kind,
        worker=rng.randrange(num_workers),
        router=rng.randrange(num_routers),
        tenant=rng.randrange(len(TENANTS)),
        seconds=rng.choice((rng.uniform(0.1, 1.0), rng.uniform(1.0, 4.0), rng.uniform(4.0, 12.0))),
        number=rng.randrange(1 << 16),
    )


def _bursts(rng: random.Random, ends_s: float, num_routers: int) -> Iterator[Ask]:
    """Equal prompts that come together; beginnings are shared by all tenants."""
    families = [_tokens(rng, rng.randint(4, 60)) for _ in range(4)]
    tenants = range(rng.choice((1, 2, 3)))
    for _ in range(rng.randint(3, 6)):
        at_s = rng.uniform(START_S, ends_s)
        prompt = rng.choice(families) + _tokens(rng, rng.randint(0, 12))
        back = rng.choice((0, 0, 0, 1, 2))
        for _ in range(rng.choice((1, 1, 2, 4))):
            ask = _ask(rng, at_s + rng.choice((0.0, rng.uniform(0.0, 0.05))), rng.choice(tenants), prompt, num_routers)
            yield replace(ask, goes_on=back)


def _around(rng: random.Random, fault: Fault, num_routers: int) -> Iterator[Ask]:
    """Something runs when a fault begins, and comes soon after; a purge finds what was cached just before it."""
    prompt = _tokens(rng, rng.randint(8, 40))
    times = [-rng.uniform(0.0, 0.5), rng.uniform(0.0, 0.4), rng.uniform(0.5, 2.0)]
    if fault.kind in PURGES:
        times += [-rng.uniform(0.6, 1.5), rng.uniform(0.0, 0.4), rng.uniform(0.0, 0.4)]
    for shift_s in times:
        ask = _ask(rng, max(START_S, fault.at_s + shift_s), fault.tenant, prompt, num_routers)
        yield replace(ask, partition=purged_partition(fault) or "", max_tokens=10, cancel_after_s=None)


def _ask(rng: random.Random, at_s: float, tenant: int, prompt: tuple[int, ...], num_routers: int) -> Ask:
    temperature = rng.choice((0.0, 0.0, 0.0, 0.75))
    return Ask(
        at_s=at_s,
        number=0,
        tenant=tenant,
        partition=rng.choice(PARTITIONS),
        prompt=prompt,
        max_tokens=rng.randint(1, 14),
        num_samples=rng.choice((1, 1, 1, 1, 2)),
        temperature=temperature,
        seed=rng.getrandbits(32) if temperature and rng.random() < 0.7 else None,
        cancel_after_s=rng.uniform(0.0, 1.0) if rng.random() < 0.12 else None,
        read_pause_s=rng.uniform(0.2, 0.6) if rng.random() < 0.04 else 0.0,
        router=rng.randrange(num_routers),
        goes_on=0,
    )


def _tokens(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCAB_SIZE) for _ in range(length))
