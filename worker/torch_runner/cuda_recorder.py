"""Records work as a CUDA graph. It needs a CUDA device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_WARM_UPS = 2
"""Runs before the recording: kernels are compiled and libraries take their workspaces in them."""


class CudaRecorder:
    """A `Recorder` whose graphs share their memory: they must not run side by side."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    @property
    def num_processors(self) -> int:
        return torch.cuda.get_device_properties(self._device).multi_processor_count

    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch has no type for it
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                work()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Another thread may copy blocks on a stream of its own meanwhile: that must not break the recording.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work()
        return graph.replay, result
