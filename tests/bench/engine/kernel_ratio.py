"""One decode call of paged attention against torch's over contiguous keys and values, in turn.

Attention as SmolLM2's: 9 query heads, 3 heads of keys and values, width 64, blocks of 16 tokens in scattered slots.
Torch's gets the query heads of one head of keys as rows of one matrix (packed GQA), so that keys are read once too.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from cache_store.kv_layout import KvDtype
from tests.bench.peers.answering import Answer
from tests.support.tiny_models import load_tiny
from worker.step_plan import Row, SequenceId, StepPlan
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.pools import KvPools
from worker.torch_runner.step_batch import build_batch

QUERY_HEADS, KV_HEADS, WIDTH, BLOCK_SIZE = 9, 3, 64, 16
NUM_LAYERS = 3
"""In turn, so that no call finds what the one before it has read."""


@torch.inference_mode()
def measure_kernel(num_rows: int, context: int, num_calls: int, threads: int) -> Answer:
    """Seconds of each call of both."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    paged = _Paged(num_rows, context, threads)
    keys, values = (torch.randn(NUM_LAYERS, num_rows, KV_HEADS, context, WIDTH) for _ in range(2))
    packed = torch.randn(num_rows, KV_HEADS, QUERY_HEADS // KV_HEADS, WIDTH)
    paged_s, contiguous_s = [], []
    for call in range(-NUM_LAYERS, num_calls):
        layer = call % NUM_LAYERS
        start = time.perf_counter()
        paged.attend(layer)
        middle = time.perf_counter()
        scaled_dot_product_attention(packed, keys[layer], values[layer])
        stop = time.perf_counter()
        if call >= 0:
            paged_s.append(middle - start)
            contiguous_s.append(stop - middle)
    torch.set_num_threads(before)
    return {"paged_s": paged_s, "contiguous_s": contiguous_s, "backend": paged.name}


class _Paged:
    """A decode step of rows of the same length."""

    def __init__(self, num_rows: int, context: int, threads: int) -> None:
        with tempfile.TemporaryDirectory(prefix="stemcache-bench-") as folder:
            model = load_tiny(
                "llama",
                Path(folder),
                num_hidden_layers=NUM_LAYERS,
                hidden_size=QUERY_HEADS * WIDTH,
                num_attention_heads=QUERY_HEADS,
                num_key_value_heads=KV_HEADS,
                head_dim=WIDTH,
            )
        num_blocks = -(-context // BLOCK_SIZE)
        slots = list(range(num_rows * num_blocks))
        random.Random(5).shuffle(slots)
        pools = KvPools(model.groups, (len(slots),), BLOCK_SIZE, KvDtype.FLOAT32, model.device, 0.5)
        rows = tuple(
            Row(SequenceId(row), (7,), context - 1, (tuple(slots[row * num_blocks : (row + 1) * num_blocks]),), ())
            for row in range(num_rows)
        )
        backend = fastest_attention(model, threads)
        self.name = backend.name
        self._step = backend.begin(pools, build_batch(StepPlan(rows, (), (), ()), BLOCK_SIZE, 1))
        self._query = torch.randn(QUERY_HEADS, num_rows, WIDTH)
        self._new = torch.randn(KV_HEADS, num_rows, WIDTH)

    def attend(self, layer: int) -> Tensor:
        return self._step.attend(layer, self._query, self._new, self._new, WIDTH**-0.5, 0, 0.0, None)
