"""The copier of torch pools: those of the CPU are memory like any other; those of a GPU have a stream for loads."""

from __future__ import annotations

from worker.block_copier import ArrayCopier, BlockCopier
from worker.torch_runner.cuda_copier import CudaCopier
from worker.torch_runner.pools import KvPools


def make_copier(pools: KvPools, num_host_blocks: int) -> BlockCopier:
    """Moves blocks between `pools` and a host pool of that many slots, which is taken from the system here."""
    if pools.device.type == "cuda":
        return CudaCopier(pools, num_host_blocks)
    arrays = [group.bytes.numpy() for group in pools.groups]
    return ArrayCopier(arrays, num_host_blocks, pools.poison_block().numpy())
