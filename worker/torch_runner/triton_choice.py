"""Makes the Triton back end for a model. Triton is imported here, when it is wanted, and by nobody else before."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from cache_store.errors import PreconditionError
from worker.torch_runner.attention_backend import AttentionBackend, Order
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import MakeBlocks, MakeGraphs, StepGraphs
from worker.torch_runner.pools import KvPools


def triton_attention(model: LoadedModel, order: Order = Order.FREE) -> AttentionBackend:
    """Raises PreconditionError where Triton is not installed, or the model is on no GPU and nothing interprets."""
    if find_spec("triton") is None:
        raise PreconditionError("the Triton kernels need the package triton: pip install 'stemcache[cuda]'")
    from worker.torch_runner.triton_attention import TritonAttention

    return TritonAttention(
        model.layers, model.groups, model.device, model.torch_dtype.itemsize, order, latents=model.latents
    )


def blocks_maker(attention: AttentionBackend) -> MakeBlocks | None:
    """Copies and scrubs by Triton where attention is."""
    if attention.name != "triton":
        return None
    from worker.torch_runner.triton_blocks import TritonBlocks

    return TritonBlocks


def graphs_maker(attention: AttentionBackend, device: torch.device, max_rows: int) -> MakeGraphs | None:
    """Records decoding of up to `max_rows` rows where the back end and the device allow it."""
    if device.type != "cuda" or attention.name != "triton":
        return None
    from worker.torch_runner.cuda_recorder import CudaRecorder
    from worker.torch_runner.decode_graphs import DecodeGraphs
    from worker.torch_runner.triton_attention import TritonAttention

    assert isinstance(attention, TritonAttention)
    triton = attention

    def make(model: LoadedModel, pools: KvPools) -> StepGraphs:
        return DecodeGraphs(model, pools, triton, CudaRecorder(device), max_rows)

    return make
