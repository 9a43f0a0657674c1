"""Compiles the Triton kernels for GPUs that need not be there: `python -m tests.gpu.compile_kernels`.

A stand-in for Triton's driver names the target; launches compile and run nothing. They are the product's own, with its
arguments, types and alignments. Prints registers, spilled bytes and shared memory of each kernel, and
fails where one does not compile or takes more shared memory than the target has.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from cache_store.kv_layout import GroupShape, KvDtype
from tests.support.paged_steps import StepCase, make_step
from worker.step_plan import SlotCopy, SlotRef
from worker.torch_runner.attention_backend import Order
from worker.torch_runner.pools import KvPools, LayerPool
from worker.torch_runner.triton_attention import TritonAttention
from worker.torch_runner.triton_blocks import TritonBlocks
from worker.torch_runner.triton_launch import DeviceWork, Kernels
from worker.torch_runner.triton_linear import fixed_linear
from worker.torch_runner.triton_tiling import latent_tiling

SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10}
"""Most shared memory of a program, by compute capability."""
ROWS = ((700, 1), (33, 1), (100, 40))


@dataclass(frozen=True)
class Compiled:
    """What came of one kernel."""

    kernel: str
    case: str
    registers: int
    spilled_bytes: int
    shared_bytes: int


class Recorder:
    """Stands for the driver of a target and collects what is compiled."""

    def __init__(self, architecture: int) -> None:
        self.target = GPUTarget("cuda", architecture, 32)
        self.kernels: list[object] = []

    def __enter__(self) -> Recorder:
        target = self.target
        triton.runtime.driver.set_active(
            SimpleNamespace(
                get_current_device=lambda: 0,
                get_current_stream=lambda device: 0,
                get_current_target=lambda: target,
                get_device_interface=lambda: torch.cuda,
            )
        )
        self._launch = JITFunction.__getitem__
        kernels = self.kernels

        def compile_only(function: JITFunction, grid: object) -> object:
            def launch(*args: object, **kwargs: object) -> None:
                kernels.append(function.run(*args, grid=grid, warmup=True, **kwargs))

            return launch

        JITFunction.__getitem__ = compile_only
        return self

    def __exit__(self, *_: object) -> None:
        JITFunction.__getitem__ = self._launch


def resources(kernel: object) -> tuple[int, int]:
    """Registers and spilled bytes per thread, as cuobjdump reads them off the binary."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        text = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", text.stdout)
    assert found is not None, text.stdout
    return int(found[1]), int(found[2])


def cases(quick: str) -> Iterator[tuple[str, StepCase, Order]]:
    """Layers of real models; all kinds of cache and, of the wide list, all widths."""
    half, kv_half = torch.bfloat16, KvDtype.BFLOAT16
    llama = StepCase(ROWS, 32, 8, 128, dtype=half, kv_dtype=kv_half)
    fp8 = StepCase(ROWS, 32, 8, 128, dtype=half, kv_dtype=KvDtype.FLOAT8)
    yield "llama 8B bf16", llama, Order.FREE
    yield "llama 8B fp8", fp8, Order.FREE
    yield "gpt-oss bf16", StepCase(ROWS, 64, 8, 64, window=128, num_sinks=64, dtype=half, kv_dtype=kv_half), Order.FREE
    if quick == "quick":
        return
    yield "llama 8B fixed", llama, Order.FIXED
    yield "llama 8B fp8 fixed", fp8, Order.FIXED
    yield "llama 8B int8", StepCase(ROWS, 32, 8, 128, dtype=half, kv_dtype=KvDtype.INT8), Order.FREE
    yield "gemma2 bf16", StepCase(ROWS, 8, 4, 256, window=4096, softcap=50.0, dtype=half, kv_dtype=kv_half), Order.FREE
    yield "smollm2 fp32", StepCase(ROWS, 9, 3, 64), Order.FREE
    widths, heads_of = (32, 64, 80, 96, 128, 192, 256), ((8, 8), (12, 4), (16, 2), (71, 1))
    for width, heads, dtype in itertools.product(widths, heads_of, (half, torch.float16, torch.float32)):
        name = {half: kv_half, torch.float16: KvDtype.FLOAT16, torch.float32: KvDtype.FLOAT32}[dtype]
        case = StepCase(ROWS, *heads, width, dtype=dtype, kv_dtype=name)
        yield f"{heads[0]}/{heads[1]} x {width} {name}", case, Order.FREE


def compile_case(recorder: Recorder, name: str, case: StepCase, order: Order) -> Iterator[Compiled]:
    recorder.kernels.clear()
    step = make_step(case)
    step.run(TritonAttention(case.layers, (case.shape,), torch.device("cuda"), case.dtype.itemsize, order))
    yield from _compiled(recorder, name)


def compile_others(recorder: Recorder) -> Iterator[Compiled]:
    """Latent attention of DeepSeek-V3's size, the fixed-order linear layer, copies and scrubs of blocks."""
    recorder.kernels.clear()
    launch_latent(torch.bfloat16, torch.device("cuda"))
    yield from _compiled(recorder, "latent bf16")
    fixed_linear(torch.zeros(70, 4096, dtype=torch.bfloat16), torch.zeros(64, 4096, dtype=torch.bfloat16), None)
    yield from _compiled(recorder, "4096 inputs bf16")
    shape = GroupShape(0, 8, 128, 128, (0, 1))
    blocks = TritonBlocks(KvPools((shape,), (4,), 16, KvDtype.BFLOAT16, torch.device("cpu"), 0.0))
    blocks.copy((SlotCopy(0, 1, 2, 5), SlotCopy(0, 3, 0, 7)))
    blocks.scrub((SlotRef(0, 1), SlotRef(0, 2)))
    yield from _compiled(recorder, "blocks")


def _compiled(recorder: Recorder, case: str) -> Iterator[Compiled]:
    for kernel in recorder.kernels:
        registers, spilled = resources(kernel)
        yield Compiled(kernel.metadata.name, case, registers, spilled, kernel.metadata.shared)
    recorder.kernels.clear()


def launch_latent(dtype: torch.dtype, device: torch.device) -> None:
    """A step of two tokens over latent vectors."""
    pool = torch.zeros(4, 16, 1, 576, dtype=dtype)
    words = {"items": [[0, 0, 1, 40, 0, 41, 0, 0]], "num_items": [1], "parts": [[0], [1], [1]]}
    tensors = {name: torch.tensor(value, dtype=torch.int32) for name, value in words.items()}
    work = DeviceWork(**tensors, num_parts=1, num_programs=1)
    table = torch.zeros(4, dtype=torch.int32)
    query, out = torch.zeros(128, 1, 576, dtype=dtype), torch.zeros(1, 128, 512, dtype=dtype)
    layer = LayerPool(pool, pool[..., :0], None, None)
    Kernels(device).attend_latent(query, layer, table, work, latent_tiling(dtype.itemsize), 0.1, out)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=int, default=90, choices=sorted(SHARED_BYTES))
    parser.add_argument("--quick", action="store_const", const="quick", default="all")
    options = parser.parse_args(arguments)
    too_large = 0
    with Recorder(options.target) as recorder:
        for lines in (
            *(compile_case(recorder, *each) for each in cases(options.quick)),
            compile_others(recorder),
        ):
            for line in lines:
                fits = line.shared_bytes <= SHARED_BYTES[options.target]
                too_large += not fits
                print(
                    f"{line.case:28} {line.kernel:14} {line.registers:4} registers {line.spilled_bytes:5} spilled "
                    f"{line.shared_bytes:7} shared {'' if fits else 'TOO MUCH'}",
                    flush=True,
                )
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
