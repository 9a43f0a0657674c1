"""Tables of the router, of routing rules over a cluster, of replays of traces, and of the index."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.bench.cluster.__main__ import FETCHING, LOADS, MAX_P99, MIN_HITS, POOLED, POOLED_LRU
from tests.bench.cluster.rules import GREEDY, OURS
from tests.bench.index.lookups import COPY, HMGET, PING, SCRIPT
from tests.bench.machine import NOT_RUN
from tests.bench.page.markdown import MISSING, number, percent, table, verdict
from tests.bench.page.results import Result
from tests.bench.replay import TRACES
from tests.bench.router.sides import HOP, ROUTER, STRAIGHT

HTTP = "HTTP"


def router(result: Result) -> str:
    """Each way beside the straight one of its protocol."""
    sides, at = result.figures["sides"], result.figures["concurrency"]
    rows, base = [], sides[STRAIGHT]
    for name, each in sides.items():
        if name == STRAIGHT or name.endswith(HTTP):
            base = each
        added = [MISSING if each is base else number(each[key] - base[key]) for key in ("p50_ms", "p99_ms")]
        latencies = (number(each["p50_ms"]), number(each["p99_ms"]), *added)
        loaded = [number(each[key], 1) for key in ("loaded_rate", "loaded_cpu_rate")]
        rows.append((name, *latencies, number(each["cpu_rate"], 1), *loaded, number(each["loaded_p99_ms"])))
    rows += [(f"{peer}: {why}", *[NOT_RUN] * 8) for peer, why in result.absent_peers.items()]
    headings = ("ms; calls/s", "p50", "p99", "added p50", "added p99", "per core", f"at {at}", "per core", "p99")
    hop, ours, straight = sides[HOP], sides[ROUTER], sides[STRAIGHT]
    added_ratio = (ours["p50_ms"] - straight["p50_ms"]) / (hop["p50_ms"] - straight["p50_ms"])
    return "\n\n".join(
        (
            table(headings, rows),
            f"The router's added p50 by one plain hop's: {verdict(added_ratio, 2.0, '≤')}. Calls/s at {at} by plain "
            f"proxying's: {verdict(ours['loaded_rate'] / hop['loaded_rate'], 0.5, '≥')}, per core "
            f"{ours['loaded_cpu_rate'] / hop['loaded_cpu_rate']:.2f}. `per core`: of the process in between.",
        )
    )


def cluster(result: Result) -> str:
    """A table for each load and number of workers."""
    cases = result.figures["cases"]
    parts = [_case(case) for case in cases]
    return "\n\n".join((*parts, *_left_out(LOADS, {case["load"] for case in cases})))


def _case(case: Mapping[str, Any]) -> str:
    rules = case["rules"]
    greedy_s = rules[GREEDY]["ttft_s"]["0.99"] if GREEDY in rules else None
    rows = []
    for name, each in rules.items():
        kept = [percent(each["hit_tokens"] / rules[pooled]["hit_tokens"]) for pooled in (POOLED, POOLED_LRU)]
        p50_s, p99_s = (each["ttft_s"][share] for share in ("0.5", "0.99"))
        beside = MISSING if greedy_s is None else f"{p99_s / greedy_s:.2f}"
        times = (f"{p50_s:,.2f}", f"{p99_s:,.1f}", beside)
        rows.append((name, percent(each["hit_share"]), *kept, f"{each['imbalance']:.2f}", *times))
    headings = ("", "hits", "of pooled", "of pooled LRU", "imbalance", "TTFT p50, s", "p99, s", "p99 by greedy's")
    parts = [f"**{case['load']}, {case['workers']} workers**, {case['requests']:,} requests", table(headings, rows)]
    for name in (OURS, FETCHING):
        if name in rules and greedy_s is not None:
            kept = verdict(rules[name]["hit_tokens"] / rules[POOLED]["hit_tokens"], MIN_HITS, "≥")
            late = verdict(rules[name]["ttft_s"]["0.99"] / greedy_s, MAX_P99, "≤")
            parts.append(f"{name}: hits of pooled {kept}, p99 by greedy's {late}.")
    return "\n\n".join(parts)


def replay(result: Result) -> str:
    """Hits by policy and capacity, on the device and with a host pool."""
    figures = result.figures
    parts = [_replayed(figures["device"])]
    parts.append(f"With a host pool of {figures['host_factor']} times the capacity:")
    parts.append(_replayed(figures["host"]))
    return "\n\n".join((*parts, *_left_out(TRACES, figures["device"])))


def _left_out(known: Iterable[str], found: Container[str]) -> Iterator[str]:
    """Names loads that this run did without."""
    if lacking := [load for load in known if load not in found]:
        yield f"**{NOT_RUN}: {', '.join(lacking)}**"


def _replayed(loads: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    shares = sorted({_share(report) for reports in loads.values() for report in reports})
    rows = []
    for load, reports in loads.items():
        for policy in dict.fromkeys(report["policy"] for report in reports):
            found = {_share(report): report for report in reports if report["policy"] == policy}
            speeds = sorted(report["references_per_s"] / 1e6 for report in found.values() if report["references_per_s"])
            speed = f"{speeds[len(speeds) // 2]:.3f}" if speeds else MISSING
            hits = [percent(found[share]["hit_rate"]) if share in found else MISSING for share in shares]
            rows.append((f"{load}, {_POLICIES.get(policy, policy)}", *hits, speed))
    return table(("", *(f"{share:.0%}" for share in shares), "M blocks/s"), rows)


_POLICIES = {
    "lru": "least recently used",
    "class": "by classes of use (the default)",
    "optimum": "optimum, which knows what comes",
}


def _share(report: Mapping[str, Any]) -> float:
    return round(float(report["capacity_share"]), 2)


def index(result: Result) -> str:
    """Lookups for each number of workers, then changes."""
    figures = result.figures
    parts: list[str] = []
    for workers in result.settings["workers"]:
        parts += _lookups(workers, figures[f"lookups, {workers} workers"], result)
    parts.append(f"Hashing takes {number(figures['hashing_us_per_1000_tokens'])} µs per 1,000 tokens.")
    tenants, partitions = result.settings["tenants"]
    parts.append(f"**Changes**, {tenants:,} tenants with {partitions} partitions each")
    parts += _changes(figures["changes"], result)
    return "\n\n".join(parts)


def _lookups(workers: int, lookups: Mapping[str, Any], result: Result) -> Iterator[str]:
    cases = lookups["cases"]
    ping_us = next(case["wall_us"]["0.5"] for case in cases if case["kind"] == PING)
    yield f"**Lookup over {workers} workers**, µs; p50 (p99); a PING took {number(ping_us)}"
    rows = []
    for chain in dict.fromkeys(case["chain"] for case in cases if case["chain"]):
        by_kind = {case["kind"]: case for case in cases if case["chain"] == chain}
        us = lookups["dynamo_us"].get(chain)
        rows.append(
            (
                chain,
                _wall(by_kind.get(COPY)),
                NOT_RUN if us is None else number(us),
                *(_server(by_kind.get(kind)) for kind in (SCRIPT, HMGET)),
                _wall(by_kind.get(SCRIPT)),
            )
        )
    dynamo = f"Dynamo's RadixTree {'' if 'dynamo' in result.absent_peers else result.peers['dynamo']}".strip()
    yield table(("", "a router's copy", dynamo, "script, server", "HMGET, server", "script, caller"), rows)


def _wall(case: Mapping[str, Any] | None) -> str:
    return MISSING if case is None else f"{number(case['wall_us']['0.5'])} ({number(case['wall_us']['0.99'])})"


def _server(case: Mapping[str, Any] | None) -> str:
    return MISSING if case is None else number(case["server_us"])


def _changes(changes: Mapping[str, Any], result: Result) -> Iterator[str]:
    redis, copy, tree = changes["redis"], changes["copy"], changes["dynamo"]
    absent = NOT_RUN if "dynamo" in result.absent_peers else MISSING
    peer = lambda name: number(tree[name]) if name in tree else absent  # noqa: E731
    ms = lambda seconds: number(seconds * 1e3)  # noqa: E731
    rows = [
        ("store a block, µs", number(redis["stored_us"]), number(copy["stored_us"]), peer("stored_us")),
        ("remove a block, µs", number(redis["removed_us"]), number(copy["removed_us"]), peer("removed_us")),
        (
            "memory of a block, bytes",
            number(redis["bytes_per_block"]),
            number(copy["bytes_per_block"]),
            peer("bytes_per_block"),
        ),
        ("end of a worker, ms", ms(redis["drop"]["wall_s"]), ms(copy["drop_s"]), peer("drop_ms")),
        ("purge of a tenant, ms", ms(redis["purge"]["wall_s"]), ms(copy["purge_s"]), absent),
    ]
    yield table(("", "Valkey", "a router's copy", "Dynamo"), rows)
    for name, limit_ms in (("drop", 50.0), ("purge", 5.0)):
        removal = redis[name]
        what = "End of a worker" if name == "drop" else "Purge of a tenant"
        yield (
            f"{what}, ms: {verdict(removal['wall_s'] * 1e3, limit_ms, '≤')}; {removal['num_found']:,} of "
            f"{removal['num_keys']:,} keys found, {removal['num_left']:,} left, {removal['num_lost']:,} of others lost."
        )
