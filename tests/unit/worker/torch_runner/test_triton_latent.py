"""Attention over latent vectors by Triton, interpreted, against the same written out in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cache_store.kv_layout import GroupShape, KvDtype
from tests.support.paged_steps import quantised
from worker.torch_runner.pools import KvPools
from worker.torch_runner.step_upload import upload
from worker.torch_runner.triton_launch import DeviceWork, Kernels
from worker.torch_runner.triton_tiling import latent_tiling
from worker.torch_runner.work_items import Rows, make_work

CPU = torch.device("cpu")
RANK, ROPE, NUM_HEADS = 48, 8, 20
LENGTHS = (1, 37, 70)
SCALING = 0.3


@pytest.mark.parametrize("kv_dtype", [KvDtype.FLOAT32, KvDtype.BFLOAT16, KvDtype.INT8, KvDtype.FLOAT8])
def test_result_is_that_of_attention_written_out(kv_dtype: KvDtype) -> None:
    generator = torch.Generator().manual_seed(3)
    pools = KvPools((GroupShape(0, 1, RANK + ROPE, 0, (0,)),), (12,), 16, kv_dtype, CPU, math.nan)
    pool = pools.groups[0].layer(0)
    slots = torch.randperm(12, generator=generator).tolist()
    tables, latents = [], []
    for length in LENGTHS:
        table, slots = slots[: -(-length // 16)], slots[-(-length // 16) :]
        where = (torch.tensor(table)[torch.arange(length) // 16], torch.arange(length) % 16)
        vectors = torch.randn(length, 1, RANK + ROPE, generator=generator)
        if pool.key_scales is None:
            pool.keys.index_put_(where, vectors.to(pool.keys.dtype))
            latents.append(vectors.to(pool.keys.dtype).double()[:, 0])
        else:
            stored, scale = quantised(vectors, kv_dtype)
            pool.keys.view(torch.uint8).index_put_(where, stored.view(torch.uint8))
            pool.key_scales.index_put_(where, scale)
            latents.append((stored.double() * scale.double().unsqueeze(-1))[:, 0])
        tables += table
    starts = np.cumsum([0, *(-(-length // 16) for length in LENGTHS)])[:-1].astype(np.int32)
    ones = np.ones(len(LENGTHS), np.int32)
    rows = Rows(starts, np.arange(len(LENGTHS), dtype=np.int32), ones, np.array(LENGTHS, np.int32) - 1)
    work = make_work(rows, 0, 1, 32)
    arrays = [work.items, np.array([len(work.items)], np.int32), work.parts, np.array(tables, np.int32)]
    items, num_items, parts, table = upload(arrays, CPU)
    query = torch.randn(NUM_HEADS, len(LENGTHS), RANK + ROPE, generator=generator)
    if kv_dtype is KvDtype.BFLOAT16:
        query = query.bfloat16()
    out = torch.empty(len(LENGTHS), NUM_HEADS, RANK)
    device_work = DeviceWork(items, num_items, parts, work.num_parts, num_programs=2)
    Kernels(CPU).attend_latent(query, pool, table, device_work, latent_tiling(4), SCALING, out)
    for row, vectors in enumerate(latents):
        weights = (query[:, row].double() @ vectors.T * SCALING).softmax(-1)
        assert torch.allclose(out[row].double(), weights @ vectors[:, :RANK], atol=2e-5)
