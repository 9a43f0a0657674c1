"""How fast the load generator is: `python -m tests.bench.loadtest`, or `make bench-loadtest`.

An echo server in a process of its own answers at once. A bare grpc.aio client on uvloop and the load generator's driver
ask it in turn, with as many callers: requests per second with answers of one token, streamed messages per second with
longer ones. Then the driver sends by a schedule at half of its own rate: how late is it?
"""

from __future__ import annotations

import argparse
import gc
import statistics
from pathlib import Path

import numpy as np
import uvloop

from tests.bench.loadtest.sides import CONCURRENCY, bare, open_loop, ours
from tests.bench.machine import ROOT, conditions_line, machine, print_table, verdict, versions, write_json
from tests.bench.router.processes import listening

MIN_SHARE, MAX_LAG_MS = 0.7, 10.0
ANSWERS = {"requests/s": 1, "streamed messages/s": 64}
"""What is counted, and tokens of each answer."""


def main() -> None:
    arguments = _arguments()
    before = machine()
    found = uvloop.run(_run(arguments))
    after = machine()
    _print(found)
    print(conditions_line(before, after))
    packages = versions("grpcio", "uvloop", "protobuf")
    write_json(arguments.json, {"before": before, "after": after, "versions": packages, "figures": found})
    print(f"JSON: {arguments.json}")


async def _run(arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for name, tokens in ANSWERS.items():
        async with listening("tests.bench.loadtest.echo_server", {"tokens": tokens}) as server:
            calls = arguments.calls if tokens == 1 else arguments.calls // 8
            each = 1 if tokens == 1 else tokens + 2
            sides = {"bare": bare, "ours": ours}
            found[name] = {side: [] for side in sides}
            for client in sides.values():
                await client(server.address, calls // 4, tokens)
            for number in range(arguments.rounds):
                for side in sorted(sides, reverse=bool(number % 2)):
                    gc.collect()
                    found[name][side].append(await sides[side](server.address, calls, tokens) * each)
            if tokens == 1:
                rate = statistics.median(found[name]["ours"]) / 2
                rows = await open_loop(server.address, calls, tokens, rate)
                found["schedule lag ms"] = {"ours": [row.schedule_lag_s * 1e3 for row in rows], "rate": [rate]}
    return found


def _print(found: dict[str, dict[str, list[float]]]) -> None:
    rows = []
    for name in ANSWERS:
        bare_rate, our_rate = (statistics.median(found[name][side]) for side in ("bare", "ours"))
        share = statistics.median(b / a for a, b in zip(found[name]["bare"], found[name]["ours"], strict=True))
        told = f"{share:.2f}, {verdict(-share, -MIN_SHARE)}"
        rows.append((name, f"{bare_rate:,.0f}", f"{our_rate:,.0f}", f">= {MIN_SHARE:g}", told))
    lag = found["schedule lag ms"]
    p50, p99 = np.percentile(lag["ours"], (50, 99))
    told = f"{p99:.2f} ms, {verdict(float(p99), MAX_LAG_MS)}"
    rows.append((f"lag at {lag['rate'][0]:,.0f}/s", "", f"p50 {p50:.2f} ms", f"p99 <= {MAX_LAG_MS:g} ms", told))
    print_table((f"{CONCURRENCY} callers", "bare grpc.aio", "load generator", "to reach", "reached"), rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.loadtest", description=__doc__)
    parser.add_argument("--calls", type=int, default=8_000, help="per round, of answers of one token")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-loadtest.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
