"""What the flags of `stemcache loadtest` mean: tenants and their loads, as one plan."""

from __future__ import annotations

import argparse
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from cache_store.errors import InvalidRequestError
from services.cli.loadtest_flags import USUAL_NUM_PROMPTS, USUAL_RATE
from services.cli.quota import share
from services.client import TenantTerms
from services.cluster.data_folder import read_private
from services.loadtest.arrivals import MAX_CALLERS, Arrival, Bounds, ClosedLoop, OpenLoop, Ramp, RampKind, TraceTimes
from services.loadtest.conditions import Setting, StatedConditions
from services.loadtest.run_plan import CacheStart, Priming, RunPlan, TenantPlan, main_percentiles
from services.loadtest.tenant_access import Wanted
from services.loadtest.tenants_file import TenantEntry, read_tenants_file
from services.loadtest.workloads import USUAL, WorkloadKind, WorkloadSpec
from services.settings import environment
from services.user_settings import UserSettings

OWN_TENANT, NOISY = "loadtest", "noisy"
_SECRETS = {"key", "run", "command", "admin_token_file", "key_file"}


@dataclass(frozen=True, slots=True)
class Load:
    """One tenant's load as it was asked for, without its key."""

    wanted: Wanted
    weight: float
    spec: WorkloadSpec
    arrival: Arrival
    bounds: Bounds
    quota: Mapping[str, Setting]


def loads_of(args: argparse.Namespace) -> list[Load]:
    """What each tenant sends. Raises InvalidRequestError."""
    loads = [_load(args, entry) for entry in _entries(args)]
    if args.noisy_neighbour:
        spec = USUAL[WorkloadKind.RANDOM]
        bounds = Bounds(None, args.duration) if args.duration else loads[0].bounds
        noisy = Wanted(NOISY, _made_name(NOISY), "", TenantTerms())
        loads.append(Load(noisy, 1.0, spec, ClosedLoop(args.noisy_neighbour), bounds, {}))
    callers = sum(each.arrival.concurrency for each in loads if isinstance(each.arrival, ClosedLoop))
    if callers > MAX_CALLERS:
        raise InvalidRequestError(
            "max-concurrency", f"all tenants together have {callers:,} callers; at most {MAX_CALLERS:,}"
        )
    if not 0 <= args.num_warmups <= MAX_CALLERS:
        raise InvalidRequestError("num-warmups", f"num-warmups is 0 or more, at most {MAX_CALLERS:,}")
    names = [each.wanted.tenant for each in loads]
    if len(set(names)) != len(names):
        raise InvalidRequestError("tenants", f"two tenants have one name: {', '.join(names)}")
    return loads


def workload_of(loads: Sequence[Load]) -> str:
    """What a run's folder is called by."""
    return "+".join(dict.fromkeys(each.spec.kind for each in loads))


def plan_of(args: argparse.Namespace, loads: Sequence[Load], keys: Mapping[str, str]) -> RunPlan:
    """The plan of one run, in a partition of its own unless one is named."""
    start = CacheStart(args.cache_start)
    if args.partition and start is CacheStart.FRESH:
        raise InvalidRequestError(
            "partition", "--partition names a space that exists: add --cache-start purge (empties it first) or keep"
        )
    if start is CacheStart.PURGE and not args.partition:
        raise InvalidRequestError("cache-start", "--cache-start purge empties the space that --partition names")
    tenants = tuple(
        TenantPlan(
            tenant=each.wanted.tenant,
            server_name=each.wanted.server_name,
            api_key=keys[each.wanted.tenant],
            weight=each.weight,
            spec=each.spec,
            arrival=each.arrival,
            bounds=each.bounds,
            quota=each.quota,
        )
        for each in loads
    )
    return RunPlan(
        tenants=tenants,
        seed=args.seed,
        partition=args.partition or ("" if start is CacheStart.KEEP else f"loadtest-{uuid.uuid4().hex}"),
        cache_start=start,
        priming=Priming(args.priming),
        num_warmups=args.num_warmups,
        drain_s=args.drain,
        sample_s=max(0.05, args.sample_every),
        percentiles=main_percentiles(args.metric_percentiles),
        goodput_ms=dict(args.goodput),
        pool_tokens=args.pool_tokens,
        settings={name: _setting(value) for name, value in vars(args).items() if name not in _SECRETS},
        stated=_stated(args),
    )


def _stated(args: argparse.Namespace) -> StatedConditions | None:
    """Raises InvalidRequestError where a server tells such things itself."""
    stated = StatedConditions(args.server_max_num_seqs, args.server_hardware, args.server_version)
    if stated == StatedConditions(0, "", ""):
        return None
    if args.target[0] != "openai":
        raise InvalidRequestError("target", "--server-… state what an openai target does not tell; leave them out")
    return stated


def at_point(load: Load, request_rate: float | None, concurrency: int | None) -> Load:
    """The same load at another rate, or with another number of callers."""
    if concurrency is not None:
        return replace(load, arrival=ClosedLoop(concurrency))
    if not isinstance(load.arrival, OpenLoop) or load.arrival.ramp:
        raise InvalidRequestError("request-rates", "rates are swept over open loops without a ramp; leave it out")
    assert request_rate is not None
    return replace(load, arrival=replace(load.arrival, request_rate=request_rate))


def spec_of(args: argparse.Namespace, entry: TenantEntry) -> WorkloadSpec:
    """A tenant's workload: its table goes before the flags, these before what is usual."""
    kind = entry.workload or WorkloadKind(args.workload)
    named = {each.name: getattr(args, each.name) for each in fields(WorkloadSpec) if each.name != "kind"}
    given = {name: value for name, value in named.items() if value is not None}
    return replace(USUAL[kind], **(given | dict(entry.parameters)))


def bounds_of(args: argparse.Namespace, entry: TenantEntry) -> Bounds:
    """How much a tenant sends."""
    number = entry.num_prompts or args.num_prompts
    duration_s = entry.duration or args.duration
    kind = entry.workload or WorkloadKind(args.workload)
    if number is None and duration_s is None:
        number = None if kind is WorkloadKind.TRACE else USUAL_NUM_PROMPTS
        duration_s = math.inf if number is None else None  # a trace ends by itself
    return Bounds(number, duration_s)


def arrival_of(args: argparse.Namespace, entry: TenantEntry, kind: WorkloadKind) -> Arrival:
    """When a tenant sends."""
    burstiness = entry.burstiness or args.burstiness
    request_rate = entry.rate or args.request_rate
    if entry.concurrency:
        return ClosedLoop(entry.concurrency)
    ramp = _ramp(args) if entry.rate is None else None
    if request_rate is None and ramp is None:
        if kind is WorkloadKind.TRACE:
            return TraceTimes(max_concurrency=args.max_concurrency)
        if args.max_concurrency:
            return ClosedLoop(args.max_concurrency)
    return OpenLoop(request_rate or USUAL_RATE, burstiness, ramp, args.max_concurrency)


def _load(args: argparse.Namespace, entry: TenantEntry) -> Load:
    spec = spec_of(args, entry)
    made = not args.tenants or args.tenants.isdigit()
    name = _made_name(entry.tenant) if made and not entry.key else entry.tenant
    wanted = Wanted(entry.tenant, name, _key(entry), _terms(entry))
    return Load(wanted, entry.weight, spec, arrival_of(args, entry, spec.kind), bounds_of(args, entry), entry.quota)


def _entries(args: argparse.Namespace) -> tuple[TenantEntry, ...]:
    if args.tenants and args.tenants.isdigit():
        if not 1 <= int(args.tenants) <= 64:
            raise InvalidRequestError("tenants", f"tenants is {args.tenants}; 1 to 64 are made, or a file names them")
        return tuple(TenantEntry(f"{OWN_TENANT}-{number + 1}") for number in range(int(args.tenants)))
    if args.tenants:
        return read_tenants_file(Path(args.tenants).expanduser())
    key = args.key or (read_private(args.key_file).strip() if args.key_file else UserSettings.load().api_key)
    return (TenantEntry(OWN_TENANT, key=key),)


def _made_name(name: str) -> str:
    """Of a tenant that is made: nobody else's."""
    return f"{name}-{uuid.uuid4().hex[:6]}"


def _key(entry: TenantEntry) -> str:
    if entry.key_file:
        return read_private(Path(entry.key_file).expanduser()).strip()
    if entry.key_env:
        value = environment().get(entry.key_env, "").strip()
        if not value:
            raise InvalidRequestError("tenants", f"{entry.tenant}: {entry.key_env} is not set; it holds the API key")
        return value
    return entry.key


def _terms(entry: TenantEntry) -> TenantTerms:
    quota = dict(entry.quota)
    low, high = (quota.get(name, quota.get("strict")) for name in ("min", "max"))
    weight = quota.get("weight", entry.weight if entry.weight != 1 else None)
    return TenantTerms(
        min=None if low is None else _share(entry, low),
        max=None if high is None else _share(entry, high),
        weight=None if weight is None else float(weight),
        max_pinned=_share(entry, quota["max_pinned"]) if "max_pinned" in quota else None,
        requests_in_flight=int(quota["requests_in_flight"]) if "requests_in_flight" in quota else None,
        tokens_per_s=int(quota["tokens_per_s"]) if "tokens_per_s" in quota else None,
    )


def _share(entry: TenantEntry, value: object) -> float:
    try:
        return share(str(value))
    except argparse.ArgumentTypeError as error:
        raise InvalidRequestError("tenants", f"{entry.tenant}: quota: {error}") from None


def _ramp(args: argparse.Namespace) -> Ramp | None:
    given = (args.ramp_up_strategy, args.ramp_up_start_rps, args.ramp_up_end_rps)
    if all(each is None for each in given):
        return None
    if None in given or args.request_rate is not None:
        raise InvalidRequestError(
            "ramp-up-strategy",
            "a ramp is --ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps together, without --request-rate",
        )
    return Ramp(RampKind(args.ramp_up_strategy), args.ramp_up_start_rps, args.ramp_up_end_rps)


def _setting(value: object) -> Setting:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
