"""Three engines that fetch from each other: every answer exact, nothing foreign used, nothing left on its way.

Each case is drawn from a seed: requests of two tenants that share prompts go anywhere, with hints that are right, late
or wrong. Answers come late, cut, spoilt or not at all; requests are cancelled, steps fail, tenants are purged here
before there. Device pools are small and some have a host's memory below. The token-digest runner gives another token,
or fails the row, wherever a slot is read that holds something else than it should.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cache_store.domain import Domain, DomainTag
from cache_store.errors import InvalidRequestError, UnavailableError
from cache_store.fence import Fence
from cache_store.tokens import pack
from tests.support.engines import sampling
from tests.support.fences import fenced_domain, make_fence
from tests.support.manual_peers import Answering, PeeredBench, link
from tests.support.manual_transfers import Fate, ManualMaker
from worker.digest_runner import INSTANT, Durations
from worker.requests import CacheMode

pytestmark = pytest.mark.timeout(3_600)  # the nightly profile takes minutes

many = settings(
    max_examples=4_000 if settings.get_current_profile_name() == "nightly" else 20,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a smaller seed is no simpler case
)
TENANTS = ("acme", "globex")
PARTITIONS = ("", "p")
NUM_REQUESTS = 60


def domains_of(fence: Fence) -> tuple[Domain, ...]:
    """Those that requests of a tenant come in."""
    return tuple(fenced_domain(fence, partition) for partition in PARTITIONS)


class Case:
    """Engines and their traffic."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        draw = self.random.choice
        self.block_size = draw([2, 3, 4])
        self.makers = [ManualMaker() for _ in range(3)]
        self.benches = [
            PeeredBench(
                f"worker{number}",
                num_blocks=draw([12, 20, 64]),
                block_size=self.block_size,
                vocab_size=50,
                max_model_len=60,
                durations=draw([INSTANT, Durations(0.1, 0.1)]),
                num_host_blocks=draw([0, 8]),
                make_mover=maker,
            )
            for number, maker in enumerate(self.makers)
        ]
        link(*self.benches)
        self.fences = {tenant: make_fence(tenant) for tenant in TENANTS}
        self.old: dict[str, set[DomainTag]] = {tenant: set() for tenant in TENANTS}
        self.purged: list[set[DomainTag]] = [set() for _ in self.benches]
        """Domains that each engine has heard to be purged."""
        self.num_fetched = self.num_checked = 0

    def run(self) -> None:
        """Sends all requests, then waits for the end of everything."""
        for _ in range(NUM_REQUESTS):
            self.submit()
            for _ in range(self.random.randrange(6)):
                self.disturb()
                self.step(self.random.choice(self.benches))
        self.finish()

    def domain(self, tenant: str) -> Domain:
        whole, part = domains_of(self.fences[tenant])
        return self.random.choice([whole, whole, whole, part])

    def submit(self) -> None:
        family, length = self.random.randrange(6), self.random.choice([5, 12, 24, 30])
        prompt = [(family * 7 + at * at) % 50 for at in range(length)]
        params = sampling(self.random.choice([1, 3, 8]), self.random.choice([0.0, 0.9]), self.random.randrange(3))
        bench, *others = self.random.sample(self.benches, 3)
        domain = self.domain(self.random.choice(TENANTS))
        held = {peer: peer.engine.lookup(domain, pack(prompt)).total // self.block_size for peer in others}
        peer = max(others, key=lambda each: held[each])
        hint = peer.hint(self.random.choice([held[peer]] * 9 + [0, 1, length // self.block_size, 99]))
        modes = [CacheMode.READ_WRITE] * 6 + [CacheMode.READ_ONLY, CacheMode.BYPASS]
        try:
            bench.submit(
                prompt,
                params,
                domain=domain,
                num_samples=self.random.choice([1, 1, 2]),
                mode=self.random.choice(modes),
                peer=self.random.choice([hint] * 4 + [None]),
            )
        except (InvalidRequestError, UnavailableError):
            return

    def disturb(self) -> None:
        bench = self.random.choice(self.benches)
        what = self.random.choice(["cancel", "purge", "fail", "wait"] + ["give"] * 4 + ["nothing"] * 60)
        if what == "cancel" and bench.requests:
            bench.cancel(self.random.choice(list(bench.requests)))
        elif what == "purge":
            self.purge(self.random.choice(TENANTS))
        elif what == "fail" and bench.engine.has_work:
            bench.runner.error = RuntimeError("injected")
            self.step(bench)
            bench.runner.error = None
        elif what == "wait":
            bench.clock.advance(self.random.choice([1.0, 40.0]))
            bench.engine.tick()
        elif what == "give":
            self.give(bench)
        bench.clock.advance(0.1)
        bench.engine.check_invariants()

    def give(self, leaver: PeeredBench) -> None:
        """Others take over what one has that leaves."""
        current = {domain.root for tenant in TENANTS for domain in domains_of(self.fences[tenant])}
        for prefix in leaver.engine.exchange.hottest():
            taker = self.random.choice([bench for bench in self.benches if bench is not leaver])
            if prefix.domain.root in current:  # fences are checked before an engine is asked
                taker.engine.exchange.adopt(leaver.hint(prefix.num_blocks), prefix.domain, prefix.line.packed())

    def purge(self, tenant: str) -> None:
        """Some engines hear of it; the others have not yet, and are asked by old domains only."""
        old = self.fences[tenant]
        self.fences[tenant] = make_fence(tenant, old.epoch_number + 1)
        self.old[tenant] |= {domain.tag for domain in domains_of(old)}
        for bench, purged in zip(self.benches, self.purged, strict=True):
            if self.random.random() < 0.7:
                bench.engine.purge({old.tenant: self.fences[tenant]})
                purged |= self.old[tenant]

    def step(self, bench: PeeredBench) -> None:
        """What is on its way moves, or does not; then a step."""
        hows = [Answering.WELL] * 6 + [Answering.CUT, Answering.SPOILT, Answering.FAILED]
        for fetch in tuple(bench.peers.pending):
            if self.random.random() < 0.4:
                fetched = bench.peers.end(fetch, self.random.choice(hows), self.random.choice([0.0, 0.001, 0.01, 1.0]))
                self.num_fetched += len(fetched.blocks)
        maker = self.makers[self.benches.index(bench)]
        for transfer in maker.transfers.pending:
            if self.random.random() < 0.6:
                maker.transfers.end(transfer, self.random.choice([Fate.OK] * 9 + [Fate.FAIL]))
        if bench.engine.has_work:
            bench.step()
        else:
            bench.engine.poll()

    def finish(self) -> None:
        """Everything ends."""
        for _ in range(4_000):
            busy = [b for b in self.benches if b.engine.has_work or b.engine.num_loading or b.peers.pending]
            if not busy:
                break
            for bench in busy:
                self.step(bench)
        for bench, purged in zip(self.benches, self.purged, strict=True):
            bench.engine.check_invariants()
            assert bench.engine.num_held_blocks == 0
            assert not purged & set(bench.engine.snapshot()), "a purged block was revived"
            for key, answer in bench.answers.items():
                assert answer.has_ended, "a request was left behind"
                if answer.error is None:
                    bench.assert_exact(key)
                    self.num_checked += 1


@many
@given(st.integers(0, 2**32))
def test_answers_are_those_without_a_cache(seed: int) -> None:
    case = Case(seed)
    case.run()
    assert case.num_checked > 10


def test_cases_fetch_blocks() -> None:
    cases = [Case(seed) for seed in range(6)]
    for case in cases:
        case.run()
    assert sum(case.num_fetched for case in cases) > 50
    taken = sum(bench.engine.exchange.counts.fetched_blocks for case in cases for bench in case.benches)
    assert taken > 30
