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
from tests.bench.machine import ROOT, print_table, verdict, versions
from tests.bench.record import Record
from tests.bench.router.processes import listening

MIN_SHARE, MAX_LAG_MS = 0.7, 10.0
ANSWERS = {"requests/s": 1, "streamed messages/s": 64}
"""What is counted, and tokens of each answer."""


def main() -> None:
    arguments = _arguments()
    record = Record.begin()
    found = uvloop.run(_run(arguments))
    figures = _figures(found)
    _print(figures)
    record.write(arguments, figures=figures, raw=found, versions=versions("grpcio", "uvloop", "protobuf"))


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


def _figures(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    figures = {}
    for name in ANSWERS:
        sides = found[name]
        share = statistics.median(b / a for a, b in zip(sides["bare"], sides["ours"], strict=True))
        rates = {side: statistics.median(values) for side, values in sides.items()}
        figures[name] = rates | {"share": share, "min_share": MIN_SHARE}
    lag = found["schedule lag ms"]
    p50, p99 = (float(value) for value in np.percentile(lag["ours"], (50, 99)))
    figures["lag"] = {"rate": lag["rate"][0], "p50_ms": p50, "p99_ms": p99, "max_p99_ms": MAX_LAG_MS}
    return figures


def _print(figures: dict[str, dict[str, float]]) -> None:
    rows = []
    for name in ANSWERS:
        each = figures[name]
        told = f"{each['share']:.2f}, {verdict(-each['share'], -MIN_SHARE)}"
        rows.append((name, f"{each['bare']:,.0f}", f"{each['ours']:,.0f}", f">= {MIN_SHARE:g}", told))
    lag = figures["lag"]
    told = f"{lag['p99_ms']:.2f} ms, {verdict(lag['p99_ms'], MAX_LAG_MS)}"
    to_reach = f"p99 <= {MAX_LAG_MS:g} ms"
    rows.append((f"lag at {lag['rate']:,.0f}/s", "", f"p50 {lag['p50_ms']:.2f} ms", to_reach, told))
    print_table((f"{CONCURRENCY} callers", "bare grpc.aio", "load generator", "to reach", "reached"), rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.loadtest", description=__doc__)
    parser.add_argument("--calls", type=int, default=8_000, help="per round, of answers of one token")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-loadtest.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
