"""The engine beside those that people would otherwise run: `python -m tests.bench.engine`, or `make bench-engine`.

SmolLM2-135M in float32, as many threads for each side. Ours is the engine with its runner and kernels, built as a
worker builds them, without network, router and text. Peers that `make bench-peers` has installed, and transformers, are
measured in the same run, each in a process of its own: in each round every side is asked once, one after the other.
OpenMP waits passively on all sides, as in a worker. Ratios are medians over rounds of ours through theirs. A peer that
is not there reads "not run".
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from tests.bench.engine.measure import ROW_NAMES, Measurement
from tests.bench.engine.report import row_figures, table
from tests.bench.engine.rows import OURS, PEERS
from tests.bench.engine.sides import (
    ROOT,
    ProcessSide,
    Side,
    ours_command,
    transformers_command,
    vllm_command,
)
from tests.bench.engine.sizes import QUICK, Sizes
from tests.bench.machine import NOT_RUN, versions
from tests.bench.record import NOT_INSTALLED, Record
from worker.model_files.digests import default_cache_dir
from worker.torch_runner.prepare import prepare_smollm2


def main() -> None:
    """Measures and prints."""
    arguments = _arguments()
    record = Record.begin()
    logs = arguments.json.parent
    logs.mkdir(parents=True, exist_ok=True)
    sides: dict[str, Side] = {}
    measurement = Measurement(
        sides, QUICK if arguments.quick else Sizes(), arguments.repeats, frozenset(arguments.rows), time.time_ns() >> 20
    )
    try:
        _start(sides, arguments, logs)
        _print_sides(sides)
        infos = {name: side.info for name, side in sides.items()}
        measurement.run()
    finally:
        for side in sides.values():
            side.close()
    print(table(measurement))
    rows, raw = [row_figures(row) for row in measurement.rows], [asdict(each) for each in measurement.raw]
    figures = {"rows": rows, "sides": infos, "sizes": asdict(measurement.sizes)}
    absent = {peer: NOT_INSTALLED if peer in arguments.peers else f"{NOT_RUN}: left out" for peer in PEERS}
    peers = {peer: str(infos[peer]["version"]) if peer in infos else absent[peer] for peer in PEERS}
    record.write(arguments, figures=figures, raw=raw, versions=versions("torch", "transformers"), peers=peers)


def _start(sides: dict[str, Side], arguments: argparse.Namespace, logs: Path) -> None:
    """Fills `sides` one by one, so that those that run are closed whatever happens."""
    folder = arguments.model or prepare_smollm2(default_cache_dir(), print)
    threads = arguments.threads
    sides[OURS] = ProcessSide(OURS, ours_command(folder, threads, arguments.token_budget), logs / "stemcache.log")
    peers = set(arguments.peers)
    if "vllm" in peers and (arguments.vllm / "ready").exists():
        python = arguments.vllm.absolute() / "bin" / "python"
        mode, block_size = ("compiled", 128) if arguments.vllm_compiled else ("eager", 32)
        command = vllm_command(python, folder, threads, arguments.wait_policy, mode, block_size)
        sides["vllm"] = ProcessSide("vllm", command, logs / "vllm.log")
    if "llama.cpp" in peers and arguments.model is None and (arguments.llama / "ready").exists():
        from tests.bench.engine.f32_gguf import prepare_f32_gguf
        from tests.bench.engine.llama import LlamaSide

        gguf, log = prepare_f32_gguf(default_cache_dir()), logs / "llama.log"
        sides["llama.cpp"] = LlamaSide(arguments.llama.absolute(), gguf, threads, arguments.wait_policy, log)
    if "transformers" in peers:
        command = transformers_command(folder, threads, arguments.wait_policy)
        sides["transformers"] = ProcessSide("transformers", command, logs / "transformers.log")


def _print_sides(sides: dict[str, Side]) -> None:
    for name in (OURS, *PEERS):
        if name not in sides:
            print(f"  {name:14}{NOT_RUN}")
            continue
        info = sides[name].info
        print(f"  {name:14}{info['version']}, {info['threads']} threads: {info['settings']}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine", description=__doc__)
    names = lambda text: tuple(text.split(","))  # noqa: E731
    parser.add_argument("--rows", type=names, default=ROW_NAMES, help=f"some of {','.join(ROW_NAMES)}")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (5)")
    parser.add_argument("--threads", type=int, default=2, help="of each side (2)")
    parser.add_argument("--token-budget", type=int, default=512, help="of our engine's steps (512)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--peers", type=names, default=PEERS, help=f"some of {','.join(PEERS)}, or none")
    parser.add_argument("--vllm", type=Path, default=ROOT / ".venv-vllm", help="its environment")
    parser.add_argument("--vllm-compiled", action="store_true", help="compiled with blocks of 128, not eager with 32")
    parser.add_argument("--llama", type=Path, default=ROOT / ".venv-llama", help="llama.cpp's environment")
    policies = ("passive", "active", "default")
    parser.add_argument("--wait-policy", choices=policies, default="passive", help="OMP_WAIT_POLICY of the peers")
    parser.add_argument("--model", type=Path, help="another model's folder, without llama.cpp")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-engine.json")
    arguments = parser.parse_args()
    for given, known in ((arguments.rows, ROW_NAMES), (arguments.peers, (*PEERS, "none"))):
        unknown = set(given) - set(known)
        if unknown:
            parser.error(f"{', '.join(sorted(unknown))}: none of {', '.join(known)}")
    return arguments


if __name__ == "__main__":
    main()
