"""What caches reserve and use for eight requests of mixed length."""

from __future__ import annotations

from tests.support.step_driver import Driver
from worker.torch_runner.contiguous import ContiguousRunner
from worker.torch_runner.gather_attention import GatherAttention
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import PagedRunner

LENGTHS = (33, 70, 129, 200, 257, 391, 512, 1023)
MAX_LEN = 2048
BLOCK_SIZE = 16


def memory_lines(model: LoadedModel) -> list[str]:
    """Reserved and used bytes of both runners, from the tensors that live while all requests are held."""
    per_token = model.geometry(BLOCK_SIZE).bytes_per_token
    used = sum(LENGTHS) * per_token
    contiguous = ContiguousRunner(model, len(LENGTHS), MAX_LEN, BLOCK_SIZE).size_bytes
    num_blocks = sum(-(-length // BLOCK_SIZE) for length in LENGTHS)
    runner = PagedRunner(model, num_blocks, GatherAttention(), BLOCK_SIZE)
    driver = Driver(runner)
    tracks = [driver.start([1 + index % 1000 for index in range(length)]) for length in LENGTHS]
    for track, length in zip(tracks, LENGTHS, strict=True):
        driver.step((track, length))
    waste = [len(track.tables[0]) * BLOCK_SIZE - length for track, length in zip(tracks, LENGTHS, strict=True)]
    assert max(waste) < BLOCK_SIZE, "paged waste is below one block per sequence"
    return [
        f"lengths {', '.join(map(str, LENGTHS))}: {used / 1e6:.1f} MB of keys and values used",
        f"contiguous, up to {MAX_LEN} tokens each: {contiguous / 1e6:.1f} MB reserved, {contiguous / used:.2f} × used",
        f"paged, blocks of {BLOCK_SIZE}: {runner.pools.size_bytes / 1e6:.1f} MB reserved, "
        f"{runner.pools.size_bytes / used:.2f} × used, at most {max(waste)} tokens of waste in a sequence",
    ]
