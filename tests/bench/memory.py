"""What lower tiers bring and cost: `python -m tests.bench.memory`, or `make bench-memory`.

Swap-ins on SmolLM2 in one engine, without a network. In each round the same prompt is sent when nothing of it is
cached, when it lies on the device, on the host, and on disk; each time all tiers are full, so that what comes in pushes
others down. The price of a swap-in is what passes before a request's first step more than where the prompt is on the
device; the price of computing is the time to the first token more than that. Beside them stands a plain memory copy of
as many bytes. Then long prompts come from the host beside requests that decode: steps in which those only decode are
compared with and without blocks on their way. Last, a tenant with blocks on all tiers of two token-digest workers is
purged (`tests/bench/purge.py`).
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
from pathlib import Path

import structlog

from tests.bench.figures import conditions, median_ratio, percentile, spread
from tests.bench.purge import PurgeTimes, measure_purge
from tests.bench.swap import Disturbance, SwapTimes, measure_disturbance, measure_swaps
from worker.model_files.digests import default_cache_dir
from worker.torch_runner.loader import load_model
from worker.torch_runner.prepare import prepare_smollm2


def report_swaps(num_tokens: int, num_bytes: int, times: SwapTimes) -> None:
    """Prices of swap-ins beside those of computing."""
    print(f"\n{num_tokens:,} tokens = {num_bytes / 1e6:.1f} MB, {len(times.host)} rounds: time to the first token")
    kinds = {"nowhere": times.cold, "device": times.device, "host": times.host, "disk": times.disk}
    for name, answers in kinds.items():
        print(f"  {name:8} {spread([answer.ttft_s for answer in answers])}")
    copied_s = statistics.median(times.copy_s)
    print(f"  limit: a plain memory copy, {copied_s * 1e3:.1f} ms = {num_bytes / copied_s / 1e9:.1f} GB/s")
    computed = [cold.ttft_s - device.ttft_s for cold, device in zip(times.cold[::5], times.device, strict=True)]
    for name in ("host", "disk"):
        price = [answer.swap_s - device.swap_s for answer, device in zip(kinds[name], times.device, strict=True)]
        rate = num_bytes / statistics.median(price) / 1e9
        part = median_ratio(computed, price)
        print(f"  swap-in from {name}: {spread(price)} = {rate:.1f} GB/s, 1/{part:.0f} of computing it")


def report_disturbance(num_tokens: int, num_decoding: int, found: Disturbance) -> None:
    """Steps of those that decode."""
    print(f"\nsteps of {num_decoding} requests that decode while {num_tokens:,} tokens come from the host")
    print(f"  without {spread(found.without)}, {len(found.without)} steps")
    num_blocks = found.num_loads / max(1, found.num_swaps)
    print(f"  during  {spread(found.during)}, {len(found.during)} steps, {num_blocks:.0f} blocks a time")
    ratios = [percentile(found.during, share) / percentile(found.without, share) for share in (0.5, 0.99)]
    print(f"  during / without: p50 {ratios[0]:.2f}, p99 {ratios[1]:.2f}")


def report_purge(found: PurgeTimes) -> None:
    """When nothing was found, and when nothing was left."""
    on_device, on_host, on_disk = found.num_blocks
    print(f"\npurge of {sum(found.num_blocks):,} blocks ({on_device:,} device, {on_host:,} host, {on_disk:,} disk)")
    acknowledged = f"acknowledged by {found.num_acknowledged} of 2 workers"
    print(f"  {acknowledged} after {found.returned_s * 1e3:.0f} ms, {found.num_told:,} blocks counted")
    print(
        f"  unreachable after {found.unreachable_s * 1e3:.0f} ms; {found.num_lookups_after} lookups since found nothing"
    )
    print(f"  no byte in a pool and no file left after {found.gone_s:.1f} s", flush=True)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of swap-ins against computing (5)")
    parser.add_argument("--tokens", type=int, default=1_024, help="of the prompts that are swapped in (1024)")
    parser.add_argument("--long-tokens", type=int, default=4_096, help="of those beside others that decode (4096)")
    parser.add_argument("--long-rounds", type=int, default=30, help="of those (30)")
    parser.add_argument("--decoding", type=int, default=4, help="requests that decode (4)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--purge-blocks", type=int, default=100_000, help="of the tenant that is purged (100000)")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    model = load_model(prepare_smollm2(default_cache_dir(), print))
    bytes_per_token = model.geometry(16).bytes_per_token
    print(f"SmolLM2-135M, {conditions(arguments.threads)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="stemcache-bench-") as folder:
        times = measure_swaps(model, Path(folder), arguments.tokens, arguments.rounds, arguments.threads)
        report_swaps(arguments.tokens, arguments.tokens * bytes_per_token, times)
        long_tokens, num_decoding = arguments.long_tokens, arguments.decoding
        found = measure_disturbance(
            model, Path(folder), long_tokens, num_decoding, arguments.long_rounds, arguments.threads
        )
        report_disturbance(long_tokens, num_decoding, found)
    report_purge(measure_purge(arguments.purge_blocks))


if __name__ == "__main__":
    main()
