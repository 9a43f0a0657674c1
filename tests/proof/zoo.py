"""Every architecture that is served, through every course that its cached blocks can take, against `generate`.

Each course is an engine of its own: everything computed; prefixes found on the device; sequences preempted and computed
again; blocks brought back from host memory, and from disk. Tokens have to be equal, logits within the bound, and each
course has to have done what it is named after.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from cache_store.block_files import BlockFiles
from cache_store.clock import ManualClock, SystemClock
from cache_store.policies.choice import PolicyKind
from cache_store.tokens import pack
from cache_store.transfers import Load, Moves, TransferResult
from cache_store.usage import CachedTokens
from tests.proof.drive import LogitsTap, Observed
from tests.support.domains import make_domain
from tests.support.reference import Reference
from tests.support.runner_drivers import tokens
from worker.block_copier import BlockCopier
from worker.engine import Engine
from worker.engine_config import EngineConfig
from worker.mover import MakeMover, Mover
from worker.requests import CacheMode, EngineRequest, Failed, Finished, Generated, RequestKey, Started
from worker.sampling import SamplingParams
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import PagedRunner
from worker.transfers import BackgroundTransfers, DiskTier

BLOCK_SIZE = 8
CHUNK = 24
"""Most new tokens of a step: prompts are prefilled in several, beside others that decode."""
MAX_LOGIT_DIFFERENCE = 1e-3
_CONFIG = EngineConfig(num_step_tokens=CHUNK, num_max_sequences=4, eviction_policy=PolicyKind.LRU)
"""Whatever leaves the device goes to the tiers below."""
_LONG = tuple(tokens(61, 1))
PROMPTS = (_LONG, tuple(tokens(9, 2)), (*_LONG[:44], *tokens(7, 3)))
"""The third parts from the first inside a block."""
_OTHER_LENGTH = 96
"""Of prompts that run between two runs of the others, so that their blocks leave the device."""


@dataclass(frozen=True, slots=True)
class Course:
    """What one engine did."""

    name: str
    num_equal: int
    logit_difference: float
    """Largest, up to and including each output's first differing token."""
    problems: tuple[str, ...]


class Courses:
    """Of one model."""

    def __init__(self, model: LoadedModel, expected: Sequence[Reference], folder: Path) -> None:
        """`expected` of PROMPTS, as many tokens each as every course makes."""
        self._model = replace(model, eos_token_ids=())  # no token is to end an answer
        self._expected = expected
        self._folder = folder
        self._num_new = len(expected[0].tokens)
        self._num_blocks = [-(-(len(prompt) + self._num_new) // BLOCK_SIZE) + 1 for prompt in PROMPTS]

    def run(self) -> list[Course]:
        """All of them."""
        roomy = sum(self._num_blocks) + 8
        warm = _Engine(self._model, roomy)
        cold, again = warm.generate(PROMPTS, self._num_new), warm.generate(PROMPTS, self._num_new)
        scarce = _Engine(self._model, max(self._num_blocks) + 2)
        pressed = scarce.generate(PROMPTS, self._num_new)
        return [
            self._course("cold", cold, ""),
            self._course("warm", again, "" if min(each.device for each in warm.cached[-3:]) else "nothing was cached"),
            self._course("preempted", pressed, "" if scarce.num_preemptions else "nothing was preempted"),
            self._tiered("host", 2 * roomy, 0),
            self._tiered("disk", 16, 2 * roomy),
        ]

    def _tiered(self, name: str, num_host: int, num_disk: int) -> Course:
        """The prompts again, after others have taken their blocks of the device."""
        movers: list[_Counted] = []

        def make(copier: BlockCopier) -> Mover:
            disk = None
            if num_disk:
                files = BlockFiles(self._folder / name, copier.block_bytes, num_disk)
                disk = DiskTier(files, num_disk, files.close)
            movers.append(_Counted(copier, disk, SystemClock()))
            return movers[0]

        num_blocks = sum(self._num_blocks) + 2
        engine = _Engine(self._model, num_blocks, num_host, make)
        room = (num_blocks + (num_host if num_disk else 0)) * BLOCK_SIZE
        others = [tuple(tokens(_OTHER_LENGTH, 10 + number)) for number in range(-(-room // _OTHER_LENGTH))]
        try:
            for prompt in (*PROMPTS, *others):
                engine.generate((prompt,), 1)
                while movers[0].num_begun:  # what is written in the background
                    engine.poll()
            outputs = engine.generate(PROMPTS, self._num_new)
            found = sum(each.disk if num_disk else each.host for each in engine.cached[-len(PROMPTS) :])
        finally:
            movers[0].close()
        return self._course(name, outputs, "" if found else f"nothing came from the {name}")

    def _course(self, name: str, outputs: Sequence[Observed], problem: str) -> Course:
        problems = [problem] if problem else []
        largest, num_equal = 0.0, 0
        for number, (output, expected) in enumerate(zip(outputs, self._expected, strict=True)):
            pairs = zip(output.tokens, expected.tokens, strict=True)
            agreed = next((index for index, (a, b) in enumerate(pairs) if a != b), self._num_new)
            compared = min(agreed + 1, self._num_new)
            difference = torch.stack(output.logits[:compared]) - expected.logits[:compared]
            largest = max(largest, float(difference.abs().max()))
            num_equal += agreed == self._num_new
            if agreed < self._num_new:
                problems.append(f"prompt {number}: token {agreed} differs")
        if not largest <= MAX_LOGIT_DIFFERENCE:
            problems.append(f"logits differ by {largest:.1e}")
        return Course(name, num_equal, largest, tuple(problems))


class _Counted(BackgroundTransfers):
    """Knows how many writes and loads have not ended."""

    num_begun = 0

    def move(self, moves: Moves) -> None:
        self.num_begun += len(moves.spills)
        super().move(moves)

    def load(self, loads: Sequence[Load]) -> None:
        self.num_begun += len(loads)
        super().load(loads)

    def finished(self) -> tuple[TransferResult, ...]:
        results = super().finished()
        self.num_begun -= len(results)
        return results


class _Engine:
    """An engine over a paged runner whose empty slots hold NaN. Its clock stands: what can be loaded is loaded."""

    def __init__(
        self, model: LoadedModel, num_blocks: int, num_host: int = 0, make_mover: MakeMover | None = None
    ) -> None:
        self._tap = LogitsTap()
        runner = PagedRunner(
            model,
            num_blocks,
            fastest_attention(model),
            BLOCK_SIZE,
            fill=float("nan"),
            observer=self._tap,
            num_host_blocks=num_host,
            make_mover=make_mover,
        )
        self._domain = make_domain("acme", kv_format=runner.info.kv_format.digest())
        self._engine = Engine(runner, ManualClock(), _CONFIG)
        self._seen: dict[RequestKey, Observed] = {}
        self.cached: list[CachedTokens] = []
        """Of each request, in the order of their starts."""
        self.num_preemptions = 0

    def generate(self, prompts: Sequence[tuple[int, ...]], num_new: int) -> list[Observed]:
        """Greedy tokens of all prompts; each comes while those before it are being computed."""
        keys = []
        for prompt in prompts:
            key = RequestKey(len(self._seen))
            keys.append(key)
            self._seen[key] = Observed()
            sampling = SamplingParams(0.0, 1.0, 0, 0, num_new, 0, ())
            self._engine.submit(EngineRequest(key, self._domain, pack(prompt), sampling, 1, CacheMode.READ_WRITE))
            for _ in range(2):
                self._step()
        give_up_s = time.monotonic() + 300
        while self._engine.has_work or self._engine.num_loading:
            self._step()
            assert time.monotonic() < give_up_s, "the engine does not end"
        self._engine.check_invariants()
        return [self._seen[key] for key in keys]

    def poll(self) -> None:
        """Takes note of what has ended in the background, if anything."""
        time.sleep(0.0005)
        self._engine.poll()

    def _step(self) -> None:
        outputs = self._engine.step()
        rows = iter(self._tap.take().values())
        if not outputs:
            time.sleep(0.0002)  # for what is loaded in the background
        for output in outputs:
            if isinstance(output, Failed):
                raise output.error
            if isinstance(output, Started):
                self.cached.append(output.cached)
            elif isinstance(output, Generated):
                self._seen[output.key].tokens.extend(output.token_ids)
                self._seen[output.key].logits.append(next(rows))
            elif isinstance(output, Finished):
                self.num_preemptions += output.preemptions
