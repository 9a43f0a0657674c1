"""Drivers with a runner each, whose unwritten slots hold NaN and whose logits are kept."""

from __future__ import annotations

import math
import random

from tests.support.step_driver import Driver
from tests.support.tiny_models import VOCAB_SIZE
from worker.mover import MakeMover
from worker.torch_runner.contiguous import ContiguousRunner
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.gather_attention import GatherAttention
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import PagedRunner


def tokens(count: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(4, VOCAB_SIZE) for _ in range(count)]


def paged_driver(
    model: LoadedModel,
    backend: str,
    num_blocks: int = 64,
    num_host_blocks: int = 0,
    make_mover: MakeMover | None = None,
) -> Driver:
    observers: list[Driver] = []
    runner = PagedRunner(
        model,
        num_blocks,
        GatherAttention() if backend == "gather" and not model.latents else fastest_attention(model),
        fill=math.nan,
        observer=lambda plan, logits: observers[0].observe(plan, logits),
        num_host_blocks=num_host_blocks,
        make_mover=make_mover,
    )
    observers.append(Driver(runner))
    return observers[0]


def contiguous_driver(model: LoadedModel) -> Driver:
    observers: list[Driver] = []
    runner = ContiguousRunner(
        model,
        max_batch=3,
        max_len=128,
        fill=math.nan,
        observer=lambda plan, logits: observers[0].observe(plan, logits),
    )
    observers.append(Driver(runner))
    return observers[0]
