"""What a machine with a GPU should be asked once: `make gpu-check`. Are results right, and how fast is it?

One process, no network, no model from anywhere: small models of random weights for results, layers of an 8B model for
speed. `--quick` tries less; `--interpret` goes through all of it on a CPU, tiny, so that the script itself is known to
work. Ends with a table and, with `--json`, a file. Status 0: all right; 1: something is wrong; 2: there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

NO_GPU = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument("--quick", action="store_const", const="quick", default="whole", help="fewer of everything")
    parser.add_argument("--interpret", action="store_true", help="a little of the results, on a CPU, without any GPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the findings go, too")
    options = parser.parse_args(arguments)
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before kernels are imported
    import torch

    if not options.interpret and not torch.cuda.is_available():
        print(f"gpu-check: torch {torch.__version__} sees no CUDA device here; --interpret tries the script on a CPU")
        return NO_GPU
    from tests.gpu import correctness, speed
    from tests.gpu.report import Report

    device = torch.device("cpu" if options.interpret else "cuda")
    name = "CPU, interpreted" if options.interpret else torch.cuda.get_device_name(device)
    print(f"gpu-check on {name}, torch {torch.__version__}")
    report, started = Report(), time.monotonic()
    whole = correctness.QUICK if options.quick == "quick" else correctness.WHOLE
    scale = correctness.INTERPRETED if options.interpret else whole
    with report.section("kernels"):
        correctness.check_kernels(report, device, scale)
    with report.section("fixed order"):
        correctness.check_fixed_order(report, device, scale)
    with report.section("models"):
        correctness.check_models(report, device, scale)
    whole_sizes = speed.QUICK if options.quick == "quick" else speed.WHOLE
    with torch.inference_mode():
        speed.check_all(report, device, speed.INTERPRETED if options.interpret else whole_sizes)
    print(f"\n{report.table()}\n\n{name}: {report.num_wrong} wrong, {time.monotonic() - started:.0f} s")
    if options.json:
        report.write(options.json, name)
    return 1 if report.num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
