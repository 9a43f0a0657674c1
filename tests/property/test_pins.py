"""Pins over a real pool, against a model that knows prefixes as tuples and holders as counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from types import MappingProxyType
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache_store.domain import TenantId
from cache_store.errors import AlreadyExistsError, LimitExceededError
from cache_store.prefix_tree import Block
from cache_store.quota import QuotaTable, TenantQuota
from cache_store.tokens import pack
from tests.support.domains import make_domain
from tests.support.outcomes import make_outcome
from tests.support.stored_prefixes import BLOCK, StoredPrefixes
from worker.pins import PinId, PinInfo, PinRequest, PinTable

DOMAINS = (
    make_domain("acme"),
    make_domain("acme", partition="p"),
    make_domain("acme", epoch="e2"),
    make_domain("globex"),
)
TENANTS = (DOMAINS[0].tenant, DOMAINS[3].tenant)

LINES = ([0] * 20, [0] * 10 + [1] * 10, [1] * 20)
"""Prompts of five blocks, of which two share two blocks and a part of the third."""

Prefix = tuple[int, tuple[int, ...]]
"""(domain number, all tokens up to a block's end)."""


class ModelPin(NamedTuple):
    info: PinInfo
    domain: int
    prefixes: tuple[Prefix, ...]


class PinMachine(RuleBasedStateMachine):
    """Requests that run and end, pins that come and go, time, and quotas that change, in a pool that is too small."""

    domains = st.sampled_from([0, 0, 0, 1, 2, 3])
    prompts = st.tuples(st.sampled_from(LINES), st.integers(1, 5)).map(lambda drawn: drawn[0][: drawn[1] * BLOCK])
    shares = st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0])
    stored = Bundle("stored")
    ids = st.sampled_from(["a", "b", "c"]).map(PinId)

    @initialize(num_blocks=st.integers(5, 24), share=shares)
    def start(self, num_blocks: int, share: float) -> None:
        self.store = StoredPrefixes(num_blocks)
        self.table = PinTable(self.store.pool, BLOCK, self.store.clock)
        self.num_blocks = num_blocks
        self.pins: dict[tuple[TenantId, PinId], ModelPin] = {}
        self.running: list[tuple[tuple[Block, ...], tuple[Prefix, ...]]] = []
        self.num_yielded = 0
        self.set_quotas(share, share)

    @rule(acme=shares, globex=shares)
    def set_quotas(self, acme: float, globex: float) -> None:
        self.limits = {TENANTS[0]: acme, TENANTS[1]: globex}
        quotas = {tenant: TenantQuota(max_pinned=share) for tenant, share in self.limits.items()}
        self.store.pool.set_quotas(QuotaTable(1, MappingProxyType(quotas)))

    @rule(target=stored, domain=domains, prompt=prompts)
    def run(self, domain: int, prompt: list[int]) -> tuple[int, list[int]]:
        self.store.request(prompt, DOMAINS[domain])
        return domain, prompt

    @rule(target=stored, domain=domains, prompt=prompts)
    def begin(self, domain: int, prompt: list[int]) -> tuple[int, list[int]]:
        held = self.store.hold(prompt, DOMAINS[domain])
        if held is not None:
            self.running.append((held, _prefixes(domain, prompt)))
        return domain, prompt

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 100))
    def end(self, at: int) -> None:
        held, _ = self.running.pop(at % len(self.running))
        self.store.pool.release(held, make_outcome())

    @rule(of=stored, num_tokens=st.integers(BLOCK, 20), pin_id=ids, ttl_s=st.integers(5, 40))
    def pin(self, of: tuple[int, list[int]], num_tokens: int, pin_id: PinId, ttl_s: int) -> None:
        domain, prompt = of[0], of[1][:num_tokens]
        self._pin(domain, prompt, pin_id, ttl_s)

    @rule(domain=domains, prompt=prompts, pin_id=ids)
    def pin_what_may_not_be_there(self, domain: int, prompt: list[int], pin_id: PinId) -> None:
        self._pin(domain, prompt, pin_id, 10)

    def _pin(self, domain: int, prompt: list[int], pin_id: PinId, ttl_s: int) -> None:
        tenant = DOMAINS[domain].tenant
        request = PinRequest(DOMAINS[domain], pin_id, pack(prompt), self.store.clock.unix_s() + ttl_s, f"of {pin_id}")
        standing = self.pins.get((tenant, pin_id))
        if standing is not None and standing.domain != domain:
            assert self._refused(request) == "exists"
            return
        if standing is not None:
            assert self.table.pin(request) == len(standing.prefixes)
            return
        found = _prefixes(domain, prompt[: self.store.match(prompt[: len(prompt) // BLOCK * BLOCK], DOMAINS[domain])])
        if not found:
            assert self.table.pin(request) == 0
            return
        if self._exceeds(tenant, found):
            for key in [key for key, pin in self._of(tenant) if DOMAINS[pin.domain].epoch != DOMAINS[domain].epoch]:
                del self.pins[key]
        if self._exceeds(tenant, found):
            assert self._refused(request) == "limit"
            return
        assert self.table.pin(request) == len(found)
        info = PinInfo(pin_id, f"of {pin_id}", len(found), request.expires_unix_s, request.domain.model)
        self.pins[tenant, pin_id] = ModelPin(info, domain, found)

    @rule(domain=domains, pin_id=ids)
    def unpin(self, domain: int, pin_id: PinId) -> None:
        key = (DOMAINS[domain].tenant, pin_id)
        pin = self.pins.get(key)
        is_there = pin is not None and DOMAINS[pin.domain].epoch == DOMAINS[domain].epoch
        assert self.table.unpin(DOMAINS[domain], pin_id) == is_there
        if is_there:
            del self.pins[key]

    @rule(seconds=st.integers(1, 8))
    def pass_time(self, seconds: int) -> None:
        self.store.clock.advance(seconds)
        self.table.expire()
        now_s = self.store.clock.unix_s()
        self.pins = {key: pin for key, pin in self.pins.items() if pin.info.expires_unix_s > now_s}

    @rule(tenants=st.sets(st.sampled_from(TENANTS)), num_blocks=st.integers(0, 8))
    def give_way(self, tenants: set[TenantId], num_blocks: int) -> None:
        let_go = 0
        candidates = [(pin.info.expires_unix_s, key) for key, pin in self.pins.items() if key[0] in tenants]
        for _, key in sorted(candidates):
            pinned, used = self._pinned(), self._used()
            prefixes = self.pins[key].prefixes
            if let_go >= num_blocks:
                break
            if all(used[prefix] for prefix in prefixes):
                continue
            let_go += sum(pinned[prefix] + used[prefix] == 1 for prefix in prefixes)
            del self.pins[key]
            self.num_yielded += 1
        assert self.table.yield_for(tenants, num_blocks) == let_go

    @rule(numbers=st.sets(domains))
    def end_domains(self, numbers: set[int]) -> None:
        self.table.end_domains(DOMAINS[number] for number in numbers)
        self.pins = {key: pin for key, pin in self.pins.items() if pin.domain not in numbers}

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.check_invariants()
        self.store.pool.check_invariants()
        assert self.table.num_yielded == self.num_yielded
        assert self.store.pool.num_held == len(self._pinned() | self._used())
        for tenant in TENANTS:
            assert self.table.num_pinned(tenant) == len(self._pinned_by(tenant))
        for domain in DOMAINS:
            pins = [pin for _, pin in self._of(domain.tenant) if DOMAINS[pin.domain].epoch == domain.epoch]
            expected = sorted((pin.info for pin in pins), key=lambda info: (info.expires_unix_s, info.pin_id))
            assert self.table.of(domain) == tuple(expected)
        for pin in self.pins.values():
            tokens = pin.prefixes[-1][1]
            assert self.store.match(tokens, DOMAINS[pin.domain]) == len(tokens), "a pinned prefix was evicted"

    def _refused(self, request: PinRequest) -> str:
        try:
            self.table.pin(request)
        except LimitExceededError as error:
            return "limit" if error.retry_after_s > 0 else "limit without a time to come again"
        except AlreadyExistsError:
            return "exists"
        return ""

    def _exceeds(self, tenant: TenantId, prefixes: tuple[Prefix, ...]) -> bool:
        return len({*self._pinned_by(tenant), *prefixes}) > math.floor(self.limits[tenant] * self.num_blocks + 1e-9)

    def _of(self, tenant: TenantId) -> Iterator[tuple[tuple[TenantId, PinId], ModelPin]]:
        return ((key, pin) for key, pin in self.pins.items() if key[0] == tenant)

    def _pinned(self) -> Counter[Prefix]:
        return Counter(prefix for pin in self.pins.values() for prefix in pin.prefixes)

    def _pinned_by(self, tenant: TenantId) -> set[Prefix]:
        return {prefix for _, pin in self._of(tenant) for prefix in pin.prefixes}

    def _used(self) -> Counter[Prefix]:
        return Counter(prefix for _, prefixes in self.running for prefix in prefixes)


def _prefixes(domain: int, tokens: list[int]) -> tuple[Prefix, ...]:
    return tuple((domain, tuple(tokens[: (at + 1) * BLOCK])) for at in range(len(tokens) // BLOCK))


PinMachine.TestCase.settings = settings(deadline=None, stateful_step_count=40)
TestPins = PinMachine.TestCase
