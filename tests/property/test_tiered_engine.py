"""Engines whose tiers delay, reorder, fail and tear: every answer exact, nothing foreign read, nothing left behind.

Each case is drawn from a seed: dozens of requests of two tenants that share prompts, on a device that holds two or
three of them. Transfers end in any order, at any time between two steps, well or not; requests are cancelled at any
step, steps fail, quotas change, tenants are purged. The token-digest runner gives another token, or fails the row,
wherever a slot is read that holds something else than it should. All invariants are checked after every step.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cache_store.digest import Hasher, xxh3_128
from cache_store.domain import Domain
from cache_store.errors import InvalidRequestError, UnavailableError
from cache_store.fence import Fence
from cache_store.policies.choice import PolicyKind
from cache_store.quota import EMPTY_QUOTAS, QuotaTable, TierShare
from tests.support.block_mirror import BlockMirror
from tests.support.engines import Bench, sampling
from tests.support.fences import fenced_domain, make_fence
from tests.support.manual_transfers import Fate, ManualMaker, ManualTransfers
from tests.support.quotas import make_table
from worker.digest_runner import INSTANT, Durations
from worker.engine_config import EngineConfig
from worker.requests import CacheMode, RequestKey

pytestmark = pytest.mark.timeout(3_600)  # the nightly profile takes minutes

many = settings(
    max_examples=4_000 if settings.get_current_profile_name() == "nightly" else 25,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a smaller seed is no simpler case
)
TENANTS = ("acme", "globex")
VOCAB_SIZE = 50
NUM_REQUESTS = 60
MOST_STEPS = 20_000


def constant(_: bytes) -> bytes:
    """A hash that always collides: no name tells two blocks apart, their tokens and places do."""
    return bytes(16)


class Case:
    """One engine and its traffic."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        draw = self.random.choice
        self.seconds = draw([0.0, 0.0, 0.05, 5.0])
        self.maker = ManualMaker(draw([0, 4, 12, 60]), seconds=lambda _: self.seconds)
        hasher: Hasher = draw([xxh3_128, xxh3_128, xxh3_128, constant])
        self.block_size = draw([2, 3, 4])
        self.bench = Bench(
            num_blocks=draw([10, 14, 20]),
            block_size=self.block_size,
            window=draw([None, None, None, 2, 5]),
            vocab_size=VOCAB_SIZE,
            max_model_len=60,
            config=EngineConfig(
                num_step_tokens=draw([8, 32, 64]),
                num_max_sequences=draw([2, 4, 8]),
                num_max_waiting=8,
                eviction_policy=draw([PolicyKind.CLASS, PolicyKind.LRU]),
            ),
            hasher=hasher,
            durations=draw([INSTANT, Durations(0.01, 0.001), Durations(0.1, 0.1)]),
            num_host_blocks=draw([3, 8, 30]),
            make_mover=self.maker,
        )
        self.mirror = BlockMirror() if hasher is xxh3_128 else None
        self.fences = {tenant: make_fence(tenant) for tenant in TENANTS}
        self.checked: set[RequestKey] = set()
        self.counts: Counter[str] = Counter()
        self.patience = draw([0.1, 0.4, 0.9])
        """How likely a transfer ends before the next step."""
        self.accidents = draw([0.0, 0.05, 0.2])
        """How likely a transfer ends badly, or a step fails."""

    @property
    def transfers(self) -> ManualTransfers:
        return self.maker.transfers

    def run(self) -> None:
        """Sends all requests, then waits for the end of everything."""
        for _ in range(NUM_REQUESTS):
            self.submit()
            self.disturb()
            for _ in range(self.random.randrange(12)):
                self.step()
        self.finish()

    def submit(self) -> None:
        """A conversation's next turn, or one prompt of a few."""
        tenant = self.random.choice(TENANTS)
        family, length = self.random.randrange(3), self.random.choice([1, 5, 12, 24, 30])
        prompt = [(family * 7 + at * at) % VOCAB_SIZE for at in range(length)]
        params = sampling(
            max_tokens=self.random.choice([1, 3, 10]),
            temperature=self.random.choice([0.0, 0.9]),
            seed=self.random.randrange(3),
        )
        modes = [CacheMode.READ_WRITE] * 6 + [CacheMode.READ_ONLY, CacheMode.BYPASS]
        domain = self.domain(tenant, self.random.choice(["", "", "p"]))
        try:
            self.bench.submit(
                prompt,
                params,
                domain=domain,
                num_samples=self.random.choice([1, 1, 1, 2]),
                mode=self.random.choice(modes),
                ttl_s=self.random.choice([float("inf")] * 5 + [3.0]),
            )
        except (InvalidRequestError, UnavailableError):
            self.counts["refused"] += 1

    def disturb(self) -> None:
        """Sometimes something happens beside the requests."""
        what = self.random.choice(["cancel", "purge", "quotas", "fail", "wait"] + ["nothing"] * 30)
        if what == "cancel":
            self.bench.cancel(self.random.choice(list(self.bench.requests)) if self.bench.requests else RequestKey(0))
        elif what == "purge":
            self.purge(self.random.choice(TENANTS))
        elif what == "quotas":
            self.bench.engine.set_quotas(self.random.choice(QUOTAS))
        elif what == "fail" and self.accidents and self.bench.engine.has_work:
            self.bench.runner.error = RuntimeError("injected")
            self.step()
            self.bench.runner.error = None
        elif what == "wait":
            self.bench.clock.advance(self.random.choice([1.0, 40.0]))
            self.bench.engine.tick()
        self.bench.engine.check_invariants()

    def purge(self, tenant: str) -> None:
        """All of a tenant, or its partition: what is there then is found by nobody."""
        old, everything = self.fences[tenant], self.random.random() < 0.5
        before = [self.domain(tenant, partition) for partition in ("", "p")]
        self.counts["purges"] += 1
        marks = {} if everything else {"p": self.counts["purges"]}
        self.fences[tenant] = make_fence(tenant, old.epoch_number + everything, marks)
        dropped = self.bench.engine.purge({old.tenant: self.fences[tenant]})
        self.counts["purged below"] += dropped.host_blocks + dropped.disk_blocks
        gone = before if everything else before[1:]
        assert self.bench.engine.snapshot().keys().isdisjoint(domain.tag for domain in gone)

    def step(self) -> None:
        """Ends some transfers, and runs one step."""
        for transfer in self.random.sample(self.transfers.pending, len(self.transfers.pending)):
            if self.random.random() < self.patience:
                bad = self.random.random() < self.accidents
                self.transfers.end(transfer, self.random.choice([Fate.FAIL, Fate.TEAR]) if bad else Fate.OK)
        self.bench.step()
        if self.mirror is not None:
            self.mirror.apply(self.bench.engine.drain_events())
            self.mirror.assert_equals(self.bench.engine.snapshot())
        self.check_answers()

    def check_answers(self) -> None:
        """Whoever has ended got what the prompt alone decides."""
        for key, answer in self.bench.answers.items():
            if answer.has_ended and key not in self.checked:
                self.checked.add(key)
                self.counts["ended"] += 1
                if answer.error is None:
                    self.bench.assert_exact(key)
                if answer.cached is not None:
                    self.counts["host"] += answer.cached.host > 0
                    self.counts["disk"] += answer.cached.disk > 0
                if answer.finished is not None:
                    self.counts["preempted"] += answer.finished.preemptions

    def finish(self) -> None:
        """Runs everything to its end; then purges all: no block, hold, byte or file is left."""
        self.drain()
        assert self.bench.engine.num_held_blocks == 0
        for tenant in TENANTS:
            old = self.fences[tenant]
            self.bench.engine.purge({old.tenant: make_fence(tenant, old.epoch_number + 1)})
        self.drain()
        assert all(tier.used_blocks == 0 for tier in self.bench.engine.load().tiers)
        assert self.bench.written_slots() == set(), "bytes are left on the device"
        assert self.transfers.written_slots() == set(), "bytes are left in the host's memory"
        assert not self.transfers.disk, "blocks are left on disk"
        self.counts["failed"] = sum(tier.failed_blocks for tier in self.bench.engine.load().tiers)

    def drain(self) -> None:
        """Until there is nothing left to do."""
        for _ in range(MOST_STEPS):
            self.transfers.end_all()
            self.bench.engine.poll()
            if not self.bench.engine.has_work and not self.bench.engine.num_loading:
                return
            self.step()
        raise AssertionError("somebody starves")

    def domain(self, tenant: str, partition: str) -> Domain:
        """As routers derive it now."""
        fence: Fence = self.fences[tenant]
        return fenced_domain(fence, partition)


QUOTAS: tuple[QuotaTable, ...] = (
    EMPTY_QUOTAS,
    make_table(acme=TierShare(0.5, 0.5)),
    make_table(acme=TierShare(0.3, 1.0), globex=TierShare(0.3, 0.7)),
    make_table(globex=TierShare(0.0, 0.6)),
)


@many
@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_the_tiers_do_answers_are_exact_and_nothing_is_left(seed: int) -> None:
    Case(seed).run()


def test_the_cases_are_about_tiers() -> None:
    total: Counter[str] = Counter()
    for seed in range(12):
        case = Case(seed)
        case.run()
        total += case.counts
    for what in ("host", "disk", "preempted", "failed", "purged below"):
        assert total[what] >= 5, f"hardly any {what} in {total}"
