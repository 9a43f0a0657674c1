"""Every `BlockCopier` brings bytes back as they were, and what was not copied shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from cache_store.errors import CorruptDataError
from cache_store.kv_layout import GroupShape, KvDtype
from cache_store.pool_sizes import ABSENT
from tests.support.transfer_plans import store
from worker.block_copier import ArrayCopier, BlockCopier, ByteArray
from worker.slow_copier import SlowCopier
from worker.torch_runner.copiers import make_copier
from worker.torch_runner.cuda_copier import CudaCopier
from worker.torch_runner.pools import KvPools

NUM_BLOCKS, NUM_HOST_BLOCKS = 6, 3


@dataclass(slots=True)
class Bench:
    """A copier over two groups of blocks of different width."""

    copier: BlockCopier
    read_device: Callable[[int], list[ByteArray]]
    """Bytes of all blocks of a group."""
    poison: bytes

    def device(self, *slots: int) -> bytes:
        """One block of the device."""
        return b"".join(self.read_device(group)[slot].tobytes() for group, slot in enumerate(slots))

    def host(self, slot: int) -> bytes:
        buffer = bytearray(self.copier.block_bytes)
        self.copier.read(slot, memoryview(buffer))
        return bytes(buffer)


def array_bench(seed: int = 5) -> Bench:
    generator = np.random.default_rng(seed)
    pools = [generator.integers(0, 255, (NUM_BLOCKS, width), dtype=np.uint8) for width in (96, 40)]
    poison = np.arange(136, dtype=np.uint8)
    copier = ArrayCopier(pools, NUM_HOST_BLOCKS, poison)
    return Bench(copier, lambda group: list(pools[group]), poison.tobytes())


def torch_bench(device: str = "cpu", make: Callable[[KvPools, int], BlockCopier] = make_copier) -> Bench:
    shapes = (GroupShape(0, 3, 8, 8, (0, 2)), GroupShape(24, 2, 16, 16, (1,)))
    pools = KvPools(shapes, (NUM_BLOCKS,) * 2, 4, KvDtype.BFLOAT16, torch.device(device), math.nan)
    poison = pools.poison_block().numpy().tobytes()
    generator = torch.Generator().manual_seed(5)
    for group in pools.groups:
        group.bytes.copy_(torch.randint(256, group.bytes.shape, generator=generator))
    copier = make(pools, NUM_HOST_BLOCKS)
    return Bench(copier, lambda group: list(pools.groups[group].bytes.cpu().numpy()), poison)


def slow_bench() -> Bench:
    bench = array_bench()
    return replace(bench, copier=SlowCopier(bench.copier, 0.0, 0.0, lambda _: None))


class StandIn:
    """For streams and events of CUDA: everything is done at once, and every wait is noted."""

    def __init__(self, *_: object) -> None:
        self.calls: list[str] = []

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def record(self, _stream: object) -> None:
        self.calls.append("record")

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def wait_event(self, event: object) -> None:
        assert isinstance(event, StandIn)
        assert "record" in event.calls, "a load waits for nothing"


def stood_in_bench(patch: pytest.MonkeyPatch) -> Bench:
    """The copier of GPUs over the memory of this machine."""
    patch.setattr(torch.cuda, "Stream", StandIn)
    patch.setattr(torch.cuda, "Event", StandIn)
    patch.setattr(torch.cuda, "stream", lambda stream: stream)
    patch.setattr(torch.cuda, "current_stream", lambda _device: None)
    return torch_bench(make=CudaCopier)


def cuda_bench() -> Bench:
    return torch_bench("cuda")


NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(
    params=[
        array_bench,
        torch_bench,
        slow_bench,
        stood_in_bench,
        pytest.param(cuda_bench, marks=[pytest.mark.gpu, NEEDS_CUDA]),
    ]
)
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made: Bench = request.param(monkeypatch) if request.param is stood_in_bench else request.param()
    return made


def test_a_block_comes_back_from_the_host_bit_by_bit(bench: Bench) -> None:
    wanted, other = bench.device(1, 4), bench.device(3, 3)
    bench.copier.store((store(2, 1, 4), store(0, 3, 3)))
    assert (bench.host(2), bench.host(0)) == (wanted, other)
    bench.copier.begin_loads()
    bench.copier.load(2, (5, 0))
    assert bench.device(5, 0) == wanted


def test_a_block_comes_back_from_a_buffer_bit_by_bit(bench: Bench) -> None:
    wanted = bench.device(1, 4)
    bench.copier.store((store(1, 1, 4),))
    buffer = bench.host(1)
    bench.copier.scrub((1,))
    bench.copier.begin_loads()
    bench.copier.fill(buffer, (0, 0))
    bench.copier.fill(memoryview(buffer), (5, 5))
    assert bench.device(0, 0) == bench.device(5, 5) == wanted


def test_a_group_without_a_slot_gets_nothing_and_leaves_nothing(bench: Bench) -> None:
    first = len(bench.device(0))
    bench.copier.store((store(2, 3, 3),))
    bench.copier.store((store(2, 1, ABSENT),))
    assert bench.host(2)[:first] == bench.device(1)
    assert bench.host(2)[first:] == bench.poison[first:], "what was there before is overwritten"
    before = [bench.device(slot, slot)[first:] for slot in range(NUM_BLOCKS)]
    bench.copier.begin_loads()
    bench.copier.load(2, (5, ABSENT))
    bench.copier.fill(bench.host(2), (4, ABSENT))
    assert bench.device(5) == bench.device(4) == bench.device(1)
    assert [bench.device(slot, slot)[first:] for slot in range(NUM_BLOCKS)] == before


def test_only_the_slots_that_are_named_change(bench: Bench) -> None:
    before = [bench.device(slot, slot) for slot in range(NUM_BLOCKS)]
    bench.copier.store((store(2, 1, 4),))
    bench.copier.begin_loads()
    bench.copier.load(2, (2, 2))
    assert [bench.device(slot, slot) for slot in range(NUM_BLOCKS) if slot != 2] == before[:2] + before[3:]
    assert (bench.host(0), bench.host(1)) == (bench.poison, bench.poison)


def test_slots_that_nothing_was_stored_to_and_scrubbed_ones_hold_poison(bench: Bench) -> None:
    assert bench.host(0) == bench.poison
    bench.copier.store((store(0, 0, 0), store(1, 1, 1)))
    bench.copier.scrub((0,))
    assert bench.host(0) == bench.poison
    assert bench.host(1) != bench.poison
    bench.copier.begin_loads()
    bench.copier.load(0, (3, 3))
    assert bench.device(3, 3) == bench.poison


@pytest.mark.parametrize("num_bytes", [-1, 1])
def test_a_buffer_of_another_length_is_no_block(bench: Bench, num_bytes: int) -> None:
    before = bench.device(0, 0)
    with pytest.raises(CorruptDataError, match="bytes here"):
        bench.copier.fill(bytes(bench.copier.block_bytes + num_bytes), (0, 0))
    assert bench.device(0, 0) == before


def test_sizes(bench: Bench) -> None:
    assert bench.copier.num_host_blocks == NUM_HOST_BLOCKS
    assert bench.copier.block_bytes == len(bench.poison)


def test_a_slow_copier_takes_the_time_of_each_block_it_loads() -> None:
    bench = array_bench()
    taken: list[float] = []
    slow = SlowCopier(bench.copier, 0.25, 2.0, taken.append)
    slow.store((store(0, 1, 1),))
    slow.begin_loads()
    slow.load(0, (2, 2))
    slow.fill(bytes(slow.block_bytes), (3, 3))
    assert taken == [0.25, 2.0]
