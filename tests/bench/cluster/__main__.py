"""Routing rules side by side: `python -m tests.bench.cluster`, or `make bench-cluster`.

Traces run through 4 and 8 workers in simulated time (`simulation.py`) that take as long as the token-digest runner:
the product's pool and eviction, its copy of the index, and its own choice of a worker beside others. All workers of a
cluster together have a fifth of the trace's different blocks (STEMCACHE_TRACES names the folder of the traces), and the
speed at which one pooled cache would keep them busy for the given share of the time. In one row a worker fetches what
the router says that another one has, FETCH_SPEED times as fast as it would compute it. An answer is one token: what is
compared is what routing decides, prefill. A run has the same result wherever and however often it is made.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cache_store.policies.choice import PolicyKind
from services.router.routing import RouteTuning
from tests.bench.cluster.loads import Load, hot_load, pooled_hit_share, public_loads
from tests.bench.cluster.rules import GREEDY, OURS, RULES, Ours, Rule
from tests.bench.cluster.simulation import Cluster, Outcome
from tests.bench.cluster.workers import WorkerSize
from tests.bench.machine import ROOT, print_table, verdict
from tests.bench.percentiles import percentile
from tests.bench.record import Record

MIN_HITS, MAX_P99 = 0.98, 1.1
LOADS = ("conversation", "agents", "hot document")
POOLED = "one pooled cache"
POOLED_LRU = "one pooled cache, LRU"
FETCHING = "ours, fetching"
FETCH_SPEED = 10.0
"""About what `make bench-fetch` measured: 7 at 256 tokens, 11 to 14 at 512 to 2,048."""
_HEADINGS = ("rule", "hit %", "of pooled %", "of LRU's %", "imbalance", "TTFT p50 s", "p99 s", "p99 / greedy")


@dataclass(frozen=True, slots=True)
class Case:
    """A load on a number of workers."""

    load: Load
    num_workers: int
    size: WorkerSize

    @property
    def pooled(self) -> WorkerSize:
        """All workers in one."""
        size, times = self.size, self.num_workers
        return WorkerSize(size.num_blocks * times, size.block_tokens, size.tokens_per_s * times)


def make_case(load: Load, num_workers: int, busy_share: float) -> Case:
    """Chooses size and speed of the workers."""
    total = max(load.num_blocks, num_workers * _longest(load))
    num_blocks = total // num_workers
    uncached = load.trace.num_tokens * (1 - pooled_hit_share(load, total))
    tokens_per_s = uncached / load.trace.duration_s / num_workers / busy_share
    return Case(load, num_workers, WorkerSize(num_blocks, load.trace.block_tokens, tokens_per_s))


def run_case(case: Case, rules: Mapping[str, Rule], fetch_speed: float) -> dict[str, Outcome]:
    """One pooled cache, as the product evicts and by least recent use, then every rule; ours also with fetches."""
    lru = replace(case.pooled, policy=PolicyKind.LRU)
    outcomes = {
        name: Cluster(1, size, RULES["random"]).run(case.load.trace)
        for name, size in ((POOLED, case.pooled), (POOLED_LRU, lru))
    }
    for name, rule in rules.items():
        outcomes[name] = Cluster(case.num_workers, case.size, rule).run(case.load.trace)
        print(f"  {case.load.name}, {case.num_workers} workers, {name}: done", file=sys.stderr, flush=True)
    if OURS in rules and fetch_speed:
        size = replace(case.size, fetch_speed=fetch_speed)
        outcomes[FETCHING] = Cluster(case.num_workers, size, rules[OURS]).run(case.load.trace)
    return outcomes


def report(case: Case, outcomes: Mapping[str, Outcome]) -> dict[str, object]:
    """Prints the table of a case; what it says, for the JSON."""
    size, greedy = case.size, outcomes.get(GREEDY)
    requests = len(case.load.trace.requests)
    print(
        f"\n{case.load.name}, {case.num_workers} workers of {size.num_blocks:,} blocks and {size.tokens_per_s:,.0f} "
        f"tokens/s, {requests:,} requests"
    )
    rows = [_row(name, each, outcomes, greedy) for name, each in outcomes.items()]
    print_table(_HEADINGS, rows)
    if OURS in outcomes and greedy is not None:
        _print_goals(case, outcomes, greedy)
    return {
        "load": case.load.name,
        "workers": case.num_workers,
        "size": asdict(size),
        "requests": requests,
        "rules": {name: _figures(each) for name, each in outcomes.items()},
    }


def sweep_rules(weights: Sequence[float], matches: Sequence[int]) -> dict[str, Rule]:
    """Ours with other numbers, one after the other, beside greedy TTFT."""
    rules: dict[str, Rule] = {GREEDY: RULES[GREEDY]}
    rules |= {f"weight {weight:g}": Ours(RouteTuning(recompute_weight=weight)) for weight in weights}
    rules |= {f"match {tokens}": Ours(RouteTuning(min_match_tokens=tokens)) for tokens in matches}
    return rules | {"no replication": Ours(is_hot_known=False), OURS: RULES[OURS]}


def main() -> None:
    arguments = _arguments()
    record = Record.begin()
    loads = [*public_loads(arguments.traces, arguments.requests), hot_load()] if arguments.traces else [hot_load()]
    if not arguments.traces:
        print("STEMCACHE_TRACES names no folder: the public traces are not run")
    loads = [load for load in loads if load.name in arguments.loads]
    rules = sweep_rules(arguments.weights, arguments.matches) if arguments.sweep else RULES
    found = []
    for load in loads:
        for num_workers in arguments.workers:
            case = make_case(load, num_workers, arguments.busy)
            found.append(report(case, run_case(case, rules, arguments.fetch_speed)))
    print(f"\nworkers busy {arguments.busy:g}")
    record.write(arguments, figures={"cases": found})


def _row(name: str, outcome: Outcome, outcomes: Mapping[str, Outcome], greedy: Outcome | None) -> tuple[str, ...]:
    p99 = percentile(outcome.ttft_s, 0.99)
    return (
        name,
        f"{outcome.hit_share:.1%}".rstrip("%"),
        *(f"{outcome.hit_tokens / outcomes[pooled].hit_tokens:.1%}".rstrip("%") for pooled in (POOLED, POOLED_LRU)),
        f"{outcome.imbalance:.3f}",
        f"{percentile(outcome.ttft_s, 0.5):.2f}",
        f"{p99:.2f}",
        f"{p99 / percentile(greedy.ttft_s, 0.99):.2f}" if greedy else "-",
    )


def _figures(outcome: Outcome) -> dict[str, object]:
    return {
        "hit_share": outcome.hit_share,
        "hit_tokens": outcome.hit_tokens,
        "prompt_tokens": outcome.prompt_tokens,
        "prefilled": outcome.prefilled,
        "imbalance": outcome.imbalance,
        "ttft_s": {str(share): percentile(outcome.ttft_s, share) for share in (0.5, 0.95, 0.99)},
    }


def _print_goals(case: Case, outcomes: Mapping[str, Outcome], greedy: Outcome) -> None:
    for name in (OURS, FETCHING):
        if name in outcomes:
            _print_goals_of(name, case, outcomes, greedy)


def _print_goals_of(name: str, case: Case, outcomes: Mapping[str, Outcome], greedy: Outcome) -> None:
    ours = outcomes[name]
    p99 = percentile(ours.ttft_s, 0.99) / percentile(greedy.ttft_s, 0.99)
    for pooled in (POOLED, POOLED_LRU):
        kept = ours.hit_tokens / outcomes[pooled].hit_tokens
        print(f"  {name}: hits of {pooled} >= {MIN_HITS:.0%}: {kept:.1%}, {verdict(-kept, -MIN_HITS)}")
    limit = case.load.max_imbalance
    print(f"  imbalance <= {limit}: {ours.imbalance:.3f}, {verdict(ours.imbalance, limit)}")
    print(f"  p99 TTFT <= {MAX_P99} x greedy TTFT's: {p99:.2f}, {verdict(p99, MAX_P99)}")


def _longest(load: Load) -> int:
    """Blocks that a worker needs at least: the longest prompt, and as much again."""
    return 2 * max(request.num_blocks for request in load.trace.requests)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cluster", description=__doc__)
    folder = os.environ.get("STEMCACHE_TRACES")
    numbers = lambda text: tuple(map(int, text.split(",")))  # noqa: E731
    names = lambda text: tuple(text.split(","))  # noqa: E731
    parser.add_argument("--traces", type=Path, default=Path(folder) if folder else None)
    parser.add_argument("--loads", type=names, default=LOADS)
    parser.add_argument("--workers", type=numbers, default=(4, 8))
    parser.add_argument("--requests", type=int, help="only the first so many of each trace")
    parser.add_argument("--busy", type=float, default=0.5, help="share of the time that a pooled cache would work")
    parser.add_argument(
        "--fetch-speed", type=float, default=FETCH_SPEED, help="blocks of another worker, against computing; 0: none"
    )
    parser.add_argument("--sweep", action="store_true", help="ours with other numbers instead of other rules")
    parser.add_argument("--weights", type=numbers, default=(0, 1, 2, 3, 4, 5, 6, 8, 12))
    parser.add_argument("--matches", type=numbers, default=(0, 128, 512, 1024, 2048))
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-cluster.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
