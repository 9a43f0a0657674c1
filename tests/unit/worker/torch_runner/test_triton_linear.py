"""The linear layer of the fixed order, interpreted: it multiplies, and a row keeps its bits in any batch."""

from __future__ import annotations

import pytest
import torch
from triton.runtime import interpreter

from tests.unit.worker.torch_runner.test_triton_attention import plain_product
from worker.torch_runner.triton_linear import fixed_linear


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 96, 33), (70, 100, 65), (3, 64, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_a_linear_layer(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = (
        torch.randn(*size, generator=generator).to(dtype) for size in ((2, rows, inputs), (outputs, inputs), (outputs,))
    )
    for each in (None, bias):
        expected = torch.nn.functional.linear(x.double(), weight.double(), None if each is None else each.double())
        assert torch.allclose(fixed_linear(x, weight, each).double(), expected, rtol=1e-2, atol=1e-4 * inputs)


def test_a_row_has_the_same_bits_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", plain_product)
    x, weight = torch.randn(70, 48), torch.randn(20, 48)
    whole = fixed_linear(x, weight, None)
    for first, count in ((0, 1), (69, 1), (10, 37), (5, 65)):
        assert torch.equal(fixed_linear(x[first : first + count], weight, None), whole[first : first + count])
