"""FlashInfer and torch's variable-length operator: what they are given, each stood in for by attention written out.

Neither runs on a CPU. That they are refused by reason where they cannot run is tested, too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cache_store.errors import PreconditionError
from tests.support.paged_steps import StepCase, make_step, written_out
from tests.support.tiny_models import load_tiny
from worker.config import AttentionKind
from worker.torch_runner.attention_choice import choose_attention
from worker.torch_runner.dense_attention import dense_attention
from worker.torch_runner.flashinfer_attention import FlashInferAttention
from worker.torch_runner.varlen_attention import VarlenAttention

CASES = {
    "mixed": StepCase(((1, 1), (40, 1), (33, 20), (0, 17)), 6, 2),
    "window": StepCase(((5, 1), (100, 1), (100, 40), (0, 60)), 4, 4, window=24),
    "block of 5": StepCase(((12, 1), (7, 9)), 4, 1, block_size=5),
}


def varlen_stand_in(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    longest_query: int,
    longest_key: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """Rows one by one; the last query of a row sees its last key."""
    assert window_size[1] == 0
    assert longest_query == int(query_starts.diff().max())
    assert longest_key == int(key_starts.diff().max())
    assert enable_gqa == (query.shape[1] != key.shape[1])
    outputs = []
    for row in range(len(query_starts) - 1):
        new = query[query_starts[row] : query_starts[row + 1]].transpose(0, 1)
        keys, values = (each[key_starts[row] : key_starts[row + 1]].transpose(0, 1) for each in (key, value))
        outputs.append(dense_attention(new, keys, values, scale, window_size[0] + 1, 0.0, None))
    return torch.cat(outputs)


class WrapperStandIn:
    """Reads pages as the package does: all but a row's last one are full."""

    def plan(self, *arguments: Tensor | int, **options: object) -> None:
        self.starts, self.pages, self.indices, self.last = arguments[:4]
        self.page_size = arguments[7]
        self.options = options
        assert options["causal"]

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        outputs = []
        for row in range(len(self.starts) - 1):
            table = self.indices[self.pages[row] : self.pages[row + 1]]
            length = (len(table) - 1) * self.page_size + int(self.last[row])
            keys, values = (each[table].flatten(0, 1)[:length].transpose(0, 1) for each in paged_kv_cache)
            new = q[self.starts[row] : self.starts[row + 1]].transpose(0, 1)
            window, cap = self.options["window_left"] + 1, self.options["logits_soft_cap"]
            outputs.append(dense_attention(new, keys, values, self.options["sm_scale"], window, cap, None))
        return torch.cat(outputs)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_operator_of_torch_is_given_what_rows_read(case: StepCase) -> None:
    step = make_step(case)
    assert torch.allclose(step.run(VarlenAttention(varlen_stand_in)), written_out(step), atol=2e-5)


@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("name", ["mixed", "block of 5"])
def test_flashinfer_is_given_pages(name: str, softcap: float) -> None:
    case = replace(CASES[name], softcap=softcap)
    step = make_step(case)
    backend = FlashInferAttention(case.layers, torch.float32, lambda _device: WrapperStandIn())
    assert torch.allclose(step.run(backend), written_out(step), atol=2e-5)


@pytest.mark.parametrize("kind", [AttentionKind.FLASHINFER, AttentionKind.VARLEN])
def test_they_are_refused_by_reason_where_they_cannot_run(kind: AttentionKind, tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="CUDA device"):
        choose_attention(kind, load_tiny("llama", tmp_path, num_hidden_layers=1))
