"""The engine under random submission, cancellation, failure, quotas, pins and memory pressure, against the oracle.

The token-digest runner gives another token wherever a stale, foreign or empty slot is read, so every finished request
proves the block tables, copies and commits behind it. The engine's own checks run after every step: among them, that no
request is preempted more than twice, and that afterwards it has all blocks that it will need.
"""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, precondition, rule

from cache_store.audit_mode import AuditMode
from cache_store.digest import Hasher, xxh3_128
from cache_store.domain import Domain
from cache_store.errors import AlreadyExistsError, InvalidRequestError, LimitExceededError, UnavailableError
from cache_store.fence import Fence
from cache_store.quota import QuotaTable
from cache_store.tokens import PackedTokens, common_prefix, count, pack, unpack
from tests.support.block_mirror import BlockMirror
from tests.support.engines import Bench, sampling
from tests.support.fences import fenced_domain, make_fence
from tests.support.manual_transfers import Fate, ManualMaker
from tests.support.quotas import quota_tables
from worker.digest_runner import INSTANT, Durations
from worker.engine_config import EngineConfig
from worker.pins import PinId, PinRequest
from worker.requests import CacheMode, Failed, RequestKey

pytestmark = pytest.mark.timeout(1_800)  # the nightly profile takes minutes

TENANTS = ("acme", "globex")
PLACES = (("acme", ""), ("globex", ""), ("acme", "p"))
"""Tenants and partitions: their domains change with every purge."""
places = st.sampled_from(PLACES)
VOCAB_SIZE = 6
MOST_STEPS_TO_THE_END = 4_000
"""Far more than what can be waiting would take one by one, each computed three times."""


def four_bits(data: bytes) -> bytes:
    """A hash that collides all the time."""
    return bytes([xxh3_128(data)[0] & 15]) * 16


def constant(data: bytes) -> bytes:
    """A hash that always collides."""
    return bytes(16)


prompts = st.one_of(
    st.integers(1, 24).map(lambda length: [0] * length),
    st.lists(st.integers(0, 1), min_size=1, max_size=6).flatmap(
        lambda tail: st.integers(0, 16).map(lambda length: [0] * length + tail)
    ),
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=24),
)
params = st.builds(
    sampling,
    max_tokens=st.sampled_from([1, 2, 5, 12, 20]),
    temperature=st.sampled_from([0.0, 0.8]),
    seed=st.integers(0, 3),
    min_tokens=st.sampled_from([0, 0, 3]),
    stop_token_ids=st.sampled_from([(), (), (), (5,), (1, 2)]),
)


class EngineMachine(RuleBasedStateMachine):
    """Requests of several tenants that share prompts, in a pool that is too small."""

    keys = Bundle("keys")

    @initialize(
        num_blocks=st.integers(6, 20),
        block_size=st.sampled_from([2, 2, 3, 4]),
        window=st.sampled_from([None, None, 2, 5]),
        num_step_tokens=st.sampled_from([4, 7, 64]),
        num_max_sequences=st.sampled_from([1, 3, 4, 4]),
        watermark=st.sampled_from([0.0, 0.0, 0.1, 0.5]),
        hasher=st.sampled_from([xxh3_128, xxh3_128, four_bits, constant]),
        durations=st.sampled_from([INSTANT, Durations(0.25, 0.01), Durations(4.0, 0.5)]),
        quotas=quota_tables(TENANTS),
        num_lower=st.sampled_from([(0, 0), (4, 0), (12, 0), (4, 6), (10, 20)]),
        transfer_s=st.sampled_from([0.0, 0.0, 0.1, 10.0]),
        audit=st.sampled_from([AuditMode.SAMPLED, AuditMode.SAMPLED, AuditMode.PARANOID]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        window: int | None,
        num_step_tokens: int,
        num_max_sequences: int,
        watermark: float,
        hasher: Hasher,
        durations: Durations,
        quotas: QuotaTable,
        num_lower: tuple[int, int],
        transfer_s: float,
        audit: AuditMode,
    ) -> None:
        num_host_blocks, num_disk_blocks = num_lower
        self.mover = ManualMaker(num_disk_blocks, seconds=lambda _: transfer_s)
        config = EngineConfig(
            num_step_tokens=num_step_tokens,
            num_max_sequences=num_max_sequences,
            num_max_waiting=6,
            watermark=watermark,
            audit=audit,
        )
        self.audit = audit
        self.num_damaged = 0
        self.bench = Bench(
            num_blocks,
            block_size,
            window,
            VOCAB_SIZE,
            40,
            config,
            hasher,
            durations,
            num_host_blocks,
            self.mover if any(num_lower) else None,
            draw=lambda: 0.0,
        )
        self._begin(quotas, any(num_lower), hasher)

    def _begin(self, quotas: QuotaTable, has_lower: bool, hasher: Hasher) -> None:
        """What a machine has beside its bench and its mover."""
        self.has_lower = has_lower
        self.bench.engine.set_quotas(quotas)
        self.mirror = BlockMirror() if hasher is xxh3_128 else None
        self.epochs = dict.fromkeys(TENANTS, 0)
        self.marks = dict.fromkeys(TENANTS, 0)
        """Purges of the partition `p`, in the epoch."""
        self.shared: list[tuple[Domain, bytes]] = []
        self.cancelled: set[RequestKey] = set()
        self.checked: set[RequestKey] = set()

    def _fence(self, tenant: str) -> Fence:
        mark = self.marks[tenant]
        return make_fence(tenant, self.epochs[tenant], {"p": mark} if mark else {})

    def _domain(self, place: tuple[str, str]) -> Domain:
        tenant, partition = place
        return fenced_domain(self._fence(tenant), partition)

    def _submit(self, domain, prompt, params, num_samples, mode):
        try:
            key = self.bench.submit(prompt, params, domain=domain, num_samples=num_samples, mode=mode)
        except (InvalidRequestError, UnavailableError):
            return None
        if mode is CacheMode.READ_WRITE:
            outputs = self.bench.expected(key)
            self.shared += [(domain, pack((*prompt, *sample.token_ids))) for sample in outputs]
        return key

    @rule(
        target=keys,
        place=places,
        prompt=prompts,
        params=params,
        num_samples=st.sampled_from([1, 1, 1, 2, 3]),
        mode=st.sampled_from([CacheMode.READ_WRITE] * 4 + [CacheMode.READ_ONLY, CacheMode.BYPASS, CacheMode.PURGED]),
        num_twins=st.sampled_from([0, 0, 1, 3]),
    )
    def submit(self, place, prompt, params, num_samples, mode, num_twins):
        domain = self._domain(place)
        keys = [self._submit(domain, prompt, params, num_samples, mode) for _ in range(1 + num_twins)]
        return multiple(*(key for key in keys if key is not None))

    @rule(num_steps=st.integers(1, 12), accident=st.sampled_from(["none"] * 7 + ["step", "row"]))
    def step(self, num_steps: int, accident: str) -> None:
        for _ in range(num_steps):
            self._step()
        if self.bench.engine.has_work and accident != "none":
            self.bench.runner.error = RuntimeError("injected") if accident == "step" else None
            self.bench.runner.failing_row = num_steps if accident == "row" else None
            self._step()

    @rule(key=keys)
    def cancel(self, key: RequestKey) -> None:
        self.bench.cancel(key)
        self.bench.engine.check_invariants()

    @rule(quotas=quota_tables(TENANTS))
    def change_quotas(self, quotas: QuotaTable) -> None:
        self.bench.engine.set_quotas(quotas)
        self.bench.engine.check_invariants()

    @rule(tenant=st.sampled_from(TENANTS), everything=st.booleans())
    def purge(self, tenant: str, everything: bool) -> None:
        before = [self._domain(place) for place in PLACES]
        if everything:
            self.epochs[tenant], self.marks[tenant] = self.epochs[tenant] + 1, 0
        else:
            self.marks[tenant] += 1
        gone = {domain for domain in before if domain not in {self._domain(place) for place in PLACES}}
        fence = self._fence(tenant)
        self.bench.engine.purge({fence.tenant: fence})
        self.bench.engine.check_invariants()
        assert self.bench.engine.snapshot().keys().isdisjoint(domain.tag for domain in gone)
        assert not any(self.bench.engine.pins.of(domain) for domain in gone if everything)

    @rule(place=places, prompt=prompts, lifetime_s=st.sampled_from([1.0, 1_000.0]))
    def pin(self, place, prompt, lifetime_s):
        domain = self._domain(place)
        pin_id = PinId(str(len(prompt)))
        expires_unix_s = self.bench.clock.unix_s() + lifetime_s
        with suppress(LimitExceededError, AlreadyExistsError):
            self.bench.engine.pins.pin(PinRequest(domain, pin_id, pack(prompt), expires_unix_s, ""))
        self.bench.engine.check_invariants()

    @rule(place=places, length=st.integers(1, 24))
    def unpin(self, place, length):
        self.bench.engine.pins.unpin(self._domain(place), PinId(str(length)))

    @precondition(lambda self: self.has_lower)
    @rule(data=st.data(), fate=st.sampled_from([Fate.OK, Fate.OK, Fate.OK, Fate.FAIL, Fate.TEAR]))
    def end_transfer(self, data: st.DataObject, fate: Fate) -> None:
        """Transfers end in any order, at any time between two steps, well or not."""
        pending = self.mover.transfers.pending
        if pending:
            self.mover.transfers.end(data.draw(st.sampled_from(pending)), fate)

    @precondition(lambda self: self.has_lower)
    @rule()
    def end_all_transfers(self) -> None:
        self.mover.transfers.end_all()

    @rule(seconds=st.sampled_from([0.5, 20.0]))
    def wait(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)
        self.bench.engine.tick()

    @rule(num_steps=st.integers(1, 12))
    def idle(self, num_steps: int) -> None:
        """Hits are checked in idle time; nothing of it is seen but that no sound block goes."""
        engine = self.bench.engine
        for _ in range(num_steps):
            if engine.has_work or not engine.has_idle_work:
                break
            engine.step_idle()
            engine.check_invariants()
            self._mirror_events()
        assert engine.load().audit.mismatches <= self.num_damaged

    @precondition(lambda self: self.audit is AuditMode.PARANOID)
    @rule(data=st.data(), place=places)
    def damage(self, data: st.DataObject, place: tuple[str, str]) -> None:
        """What nobody holds goes bad. Nobody reads it."""
        tokens = [tokens for domain, tokens in self.shared if domain.root == self._domain(place).root]
        if not tokens:
            return
        prompt = PackedTokens(data.draw(st.sampled_from(tokens)))
        standing = self.bench.engine._pool.audit.standing(self._domain(place), prompt, count(prompt))
        loose = [block for block in standing if not block.ref_count and max(block.slots) >= 0]
        if loose:
            slots = data.draw(st.sampled_from(loose)).slots
            group = data.draw(st.sampled_from([group for group, slot in enumerate(slots) if slot >= 0]))
            self.bench.inner.pools[group][slots[group], 0, -1] ^= 1
            self.num_damaged += 1

    def _mirror_events(self) -> None:
        if self.mirror is not None:
            self.mirror.apply(self.bench.engine.drain_events())
            self.mirror.assert_equals(self.bench.engine.snapshot())

    def _step(self) -> None:
        had_work = self.bench.engine.has_work
        num_plans = len(self.bench.runner.plans)
        outputs = self.bench.step()
        has_ended_some = any(isinstance(output, Failed) for output in outputs)
        is_waiting = self.bench.engine.num_loading > 0
        has_progress = len(self.bench.runner.plans) > num_plans or has_ended_some or is_waiting
        assert has_progress or not had_work, "a step without progress"
        self._mirror_events()
        self._check_answers()

    def _check_answers(self) -> None:
        for key, answer in self.bench.answers.items():
            if key in self.checked:
                continue
            if answer.cached_tokens is not None:
                assert answer.cached_tokens <= self._most_reusable(key)
            if answer.has_ended:
                self.checked.add(key)
                if answer.error is None:
                    self.bench.assert_exact(key)
                else:
                    assert re.search("injected|failed in a step|your tenant", str(answer.error))

    def _most_reusable(self, key: RequestKey) -> int:
        request = self.bench.requests[key]
        if request.cache_mode is CacheMode.BYPASS:
            return 0
        shared = (tokens for domain, tokens in self.shared if domain.root == request.domain.root)
        common = max((common_prefix(tokens, request.prompt) for tokens in shared), default=0)
        return min(common, len(unpack(request.prompt)) - 1)

    def _run_to_the_end(self) -> None:
        for _ in range(MOST_STEPS_TO_THE_END):
            if self.has_lower:
                self.mover.transfers.end_all()
                self.bench.engine.poll()
            if not self.bench.engine.has_work and not self.bench.engine.num_loading:
                return
            self._step()
        raise AssertionError("somebody starves")

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self._run_to_the_end()
        assert self.bench.engine.load().running_requests == 0
        assert self.bench.engine.load().waiting_requests == 0
        assert all(answer.has_ended for answer in self.bench.answers.values())
        for tenant in TENANTS:
            self.purge(tenant, everything=True)
        self._run_to_the_end()
        assert self.bench.written_slots() == set(), "bytes are left of what was purged"
        assert self.bench.engine.num_held_blocks == 0
        assert all(tier.used_blocks == 0 for tier in self.bench.engine.load().tiers)
        if self.has_lower:
            assert not self.mover.transfers.disk, "blocks are left on disk of what was purged"


TestEngine = EngineMachine.TestCase
