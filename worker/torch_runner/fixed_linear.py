"""Linear layers whose rows keep their bits in any batch, in place of a model's own ones.

Libraries choose another order of additions for another number of rows. Ours do not: on a CPU the kernel of the fused
forward, on a GPU Triton's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from cache_store.errors import PreconditionError
from worker.torch_runner.compiler import find_compiler
from worker.torch_runner.fused_library import FusedLibrary
from worker.torch_runner.kernel_build import KernelBuildError

Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""x [..., inputs], weight [outputs, inputs], bias [outputs]; gives [..., outputs]."""


class FixedLinear(nn.Module):
    """Stands for an nn.Linear, with its parameters."""

    def __init__(self, linear: nn.Linear, multiply: Multiply) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._multiply = multiply

    def forward(self, x: Tensor) -> Tensor:
        """As nn.Linear's."""
        return self._multiply(x, self.weight, self.bias)


def fix_linears(module: nn.Module, cache_dir: Path, num_threads: int) -> None:
    """Replaces every nn.Linear of `module`. Raises PreconditionError where there is no kernel for them."""
    multiply = _multiply_for(next(module.parameters()), cache_dir, num_threads)
    for path, each in list(module.named_modules()):
        if type(each) is nn.Linear:
            module.set_submodule(path, FixedLinear(each, multiply))


def _multiply_for(parameter: Tensor, cache_dir: Path, num_threads: int) -> Multiply:
    if parameter.device.type == "cuda":
        from worker.torch_runner.triton_linear import fixed_linear  # there is a GPU, and so Triton

        return fixed_linear
    compiler = find_compiler()
    if compiler is None or parameter.dtype is not torch.float32:
        raise PreconditionError(
            "a fixed order of additions on a CPU needs a float32 model and a C++ compiler: install g++ or clang++"
        )
    try:
        return _by_library(FusedLibrary(compiler, cache_dir), num_threads)
    except KernelBuildError as error:
        raise PreconditionError(f"a fixed order of additions needs our kernels: {error}") from error


def _by_library(library: FusedLibrary, num_threads: int) -> Multiply:
    def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out = torch.empty(*x.shape[:-1], weight.shape[0])
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        library.linear(weight, bias, rows, out.view(-1, weight.shape[0]), num_threads)
        return out

    return multiply
