"""Cached keys and values are checked against computed ones: what is wrong goes, and nobody else is touched."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import MappingProxyType

import numpy as np
import pytest
from structlog.testing import capture_logs

from cache_store.audit_mode import AuditMode
from cache_store.domain import Domain
from cache_store.events import BlockChange
from cache_store.quota import QuotaTable, TenantQuota, TierShare
from cache_store.tier_kind import TierKind
from cache_store.tokens import pack
from cache_store.usage import AuditCounts, CachedTokens
from tests.support.engines import ACME, GLOBEX, Bench, sampling
from tests.support.manual_transfers import ManualMaker, ManualTransfers
from tests.support.manual_transfers import always as always_ends_well
from worker.audit_samples import MAX_PER_TENANT
from worker.digest_rule import CONTEXT, RECORD_WIDTH, TOKEN
from worker.engine_config import EngineConfig
from worker.pins import PinId, PinRequest
from worker.requests import CacheMode

PROMPT = list(range(100, 141))
"""10 blocks of 4 tokens, and one token more."""
PARANOID = EngineConfig(audit=AuditMode.PARANOID)


def always() -> float:
    return 0.0


def slot_of(bench: Bench, domain: Domain, prompt: Sequence[int], number: int) -> int:
    """Slot in the first group of a cached block of the prompt."""
    tokens = pack(prompt)
    return bench.engine._pool.audit.standing(domain, tokens, len(prompt))[number].slots[0]


def damage(bench: Bench, domain: Domain, prompt: Sequence[int], number: int, group: int = 0) -> None:
    """Flips a bit of a cached block of the prompt."""
    tokens = pack(prompt)
    slot = bench.engine._pool.audit.standing(domain, tokens, len(prompt))[number].slots[group]
    bench.inner.pools[group][slot, 1, 0] ^= 1 << 7


def counts(bench: Bench) -> AuditCounts:
    return bench.engine.load().audit


def cached(bench: Bench, prompt: Sequence[int], domain: Domain = ACME) -> int:
    return bench.engine.lookup(domain, pack(prompt)).total


def test_a_sound_hit_is_checked_block_by_block_and_stays() -> None:
    bench = Bench(draw=always)
    bench.answer(PROMPT)
    assert not bench.engine.has_idle_work, "what was computed is no hit"
    warm = bench.answer(PROMPT)
    assert warm.cached_tokens == 40
    num_used = bench.engine.load().used_blocks
    with capture_logs() as logs:
        bench.run_idle()
    assert counts(bench) == AuditCounts(checked_blocks=10)
    assert logs == []
    assert bench.engine.load().used_blocks == num_used
    assert cached(bench, PROMPT) == 40
    assert bench.engine.num_held_blocks == 0


def test_a_damaged_block_is_found_and_goes_with_all_below_it() -> None:
    bench = Bench(draw=always)
    branch = [*PROMPT[:28], *range(500, 513)]
    bench.answer(PROMPT)
    bench.answer(branch)
    bench.run_idle()
    before = bench.engine.load().used_blocks
    bench.engine.drain_events()
    damage(bench, ACME, PROMPT, 5)
    assert bench.answer(PROMPT).cached_tokens == 40
    with capture_logs() as logs:
        bench.run_idle()
    assert counts(bench).mismatches == 1
    assert [log["event"] for log in logs] == ["audit_mismatch"]
    assert logs[0]["tenant"] == "acme"
    assert not {"tokens", "digest", "prompt"} & logs[0].keys()
    assert cached(bench, PROMPT) == 20
    assert cached(bench, branch) == 20, "what branched off below it is gone too"
    assert bench.engine.load().used_blocks < before
    (removed,) = [event for event in bench.engine.drain_events() if event.change is BlockChange.REMOVED]
    assert len(removed.digests) // 16 == logs[0]["num_blocks"]
    key = bench.submit(PROMPT)
    bench.run_until_idle()
    bench.assert_exact(key)
    bench.answer(PROMPT)
    bench.run_idle()
    assert counts(bench).mismatches == 1, "what was computed again is sound"


def test_the_slots_of_what_goes_are_scrubbed() -> None:
    bench = Bench(draw=always)
    bench.answer(PROMPT)
    damage(bench, ACME, PROMPT, 0)
    bench.answer(PROMPT)
    slots = {(0, slot_of(bench, ACME, PROMPT, number)) for number in range(10)}
    assert slots <= bench.written_slots()
    bench.run_idle()
    assert cached(bench, PROMPT) == 0
    assert not slots & bench.written_slots()


def test_another_tenant_keeps_what_it_has() -> None:
    bench = Bench(draw=always)
    for domain in (ACME, GLOBEX):
        bench.answer(PROMPT, domain=domain)
    damage(bench, ACME, PROMPT, 2)
    bench.answer(PROMPT)
    bench.run_idle()
    assert cached(bench, PROMPT, ACME) == 8
    assert cached(bench, PROMPT, GLOBEX) == 40


def quotas(**shares: float) -> QuotaTable:
    table = {
        domain.tenant: TenantQuota(audit_share=share)
        for domain, share in ((ACME, shares.get("acme", 0.001)), (GLOBEX, shares.get("globex", 0.001)))
    }
    return QuotaTable(1, MappingProxyType(table))


def test_a_share_of_nothing_is_never_checked_and_one_of_all_always() -> None:
    bench = Bench(num_blocks=256, draw=Random(5).random)
    bench.engine.set_quotas(quotas(acme=0.0, globex=1.0))
    for domain in (ACME, GLOBEX):
        bench.answer(PROMPT, domain=domain)
        for _ in range(50):
            bench.answer(PROMPT, domain=domain)
            bench.run_idle()
    assert counts(bench).checked_blocks == 50 * 10


def test_a_share_is_a_share() -> None:
    bench = Bench(num_blocks=256, draw=Random(5).random)
    bench.engine.set_quotas(quotas(acme=0.2))
    bench.answer(PROMPT)
    for _ in range(500):
        bench.answer(PROMPT, sampling(1))
        bench.run_idle()
    assert 60 * 10 <= counts(bench).checked_blocks <= 140 * 10


def test_real_work_goes_first_and_waits_for_one_short_step_at_most() -> None:
    bench = Bench(draw=always)
    bench.answer(PROMPT)
    bench.answer(PROMPT)
    bench.engine.step_idle()
    assert 0 < counts(bench).checked_blocks < 10
    assert bench.engine.num_held_blocks == 0, "nothing is held between steps"
    bench.submit(range(300, 320))
    num_checked = counts(bench).checked_blocks
    while bench.engine.has_work:
        assert not bench.engine.has_idle_work
        bench.engine.step_idle()
        bench.step()
    assert counts(bench).checked_blocks == num_checked
    bench.run_idle()
    assert counts(bench).checked_blocks == 10


def test_steps_are_as_long_as_the_measured_speed_allows() -> None:
    prompt = [*range(200, 260), 1]
    bench = Bench(num_blocks=128, draw=always)
    bench.answer(prompt)
    bench.answer(prompt)
    bench.engine._prefill_rate.add(800, 1.0)
    num_plans = len(bench.runner.plans)
    bench.run_idle()
    assert {plan.num_tokens for plan in bench.runner.plans[num_plans:]} <= {40, 20}  # 50 ms each


def test_what_is_gone_meanwhile_is_skipped() -> None:
    bench = Bench(num_blocks=14, draw=always)
    bench.answer(PROMPT)
    bench.answer(PROMPT)
    bench.answer(range(300, 345), domain=GLOBEX)
    bench.run_idle()
    assert counts(bench).skipped_hits == 1
    assert counts(bench).mismatches == 0


def test_no_other_tenants_block_makes_room() -> None:
    bench = Bench(num_blocks=24, draw=always)
    shares = {TierKind.DEVICE: TierShare(0.5, 1.0)}
    bench.engine.set_quotas(QuotaTable(1, MappingProxyType({ACME.tenant: TenantQuota(MappingProxyType(shares))})))
    bench.answer(PROMPT, sampling(1), domain=GLOBEX)
    bench.answer(range(300, 317), sampling(1))
    bench.answer(range(500, 537), sampling(1))
    assert bench.engine.load().used_blocks == 23, "one block is left, and GLOBEX would be the first to pay for another"
    bench.answer(range(500, 537), sampling(1))
    bench.run_idle()
    assert counts(bench).checked_blocks > 0
    assert cached(bench, PROMPT, GLOBEX) == 40
    assert cached(bench, range(500, 537)) == 36
    assert cached(bench, range(300, 317)) < 16, "its own went"


def test_without_room_nothing_is_checked() -> None:
    bench = Bench(num_blocks=64, draw=always)
    shares = {TierKind.DEVICE: TierShare(0.0, 11 / 64)}
    table = {ACME.tenant: TenantQuota(MappingProxyType(shares), max_pinned=1.0)}
    bench.engine.set_quotas(QuotaTable(1, MappingProxyType(table)))
    bench.answer(PROMPT, sampling(1))
    bench.answer(PROMPT, sampling(1))
    request = PinRequest(ACME, PinId(b"p"), pack(PROMPT), bench.clock.unix_s() + 60, "")
    assert bench.engine.pins.pin(request) == 10
    bench.run_idle()
    assert counts(bench) == AuditCounts(skipped_hits=1)
    assert cached(bench, PROMPT) == 40


def test_pins_of_what_goes_end() -> None:
    bench = Bench(num_blocks=128, draw=always)
    bench.answer(PROMPT)
    request = PinRequest(ACME, PinId(b"p"), pack(PROMPT), bench.clock.unix_s() + 60, "")
    assert bench.engine.pins.pin(request) == 10
    damage(bench, ACME, PROMPT, 9)
    bench.answer(PROMPT)
    bench.run_idle()
    assert counts(bench).mismatches == 1
    assert bench.engine.pins.of(ACME) == ()
    assert bench.engine.num_held_blocks == 0
    assert cached(bench, PROMPT) == 36


def test_what_was_purged_is_not_checked() -> None:
    bench = Bench(draw=always)
    bench.answer(PROMPT)
    bench.answer(PROMPT)
    bench.engine._pool.drop([ACME], [ACME.tenant])
    bench.run_idle()
    assert counts(bench) == AuditCounts(skipped_hits=1)


def test_so_many_wait_for_a_check_and_no_more() -> None:
    bench = Bench(num_blocks=512, draw=always)
    for domain in (ACME, GLOBEX):
        bench.answer(PROMPT, domain=domain)
        for _ in range(MAX_PER_TENANT + 3):
            bench.answer(PROMPT, domain=domain)
    bench.run_idle()
    assert counts(bench) == AuditCounts(checked_blocks=2 * MAX_PER_TENANT * 10, skipped_hits=2 * 3)


def test_a_step_that_fails_ends_the_check_and_nothing_else() -> None:
    bench = Bench(draw=always)
    bench.answer(PROMPT)
    bench.answer(PROMPT)
    bench.runner.error = RuntimeError("injected")
    with capture_logs():
        bench.run_idle()
    assert counts(bench) == AuditCounts(skipped_hits=1)
    bench.answer(PROMPT)
    bench.runner.failing_row = 0
    bench.run_idle()
    assert counts(bench) == AuditCounts(skipped_hits=2)
    bench.answer(PROMPT)
    bench.run_idle()
    assert counts(bench) == AuditCounts(checked_blocks=10, skipped_hits=2)


def test_windows_are_checked_too() -> None:
    bench = Bench(window=6, draw=always)
    bench.answer(PROMPT)
    damage(bench, ACME, PROMPT, 7, group=1)
    bench.answer(PROMPT)
    bench.run_idle()
    assert counts(bench).mismatches == 1
    assert cached(bench, PROMPT) == 28


def test_short_windows_are_computed_again_from_where_they_are_known() -> None:
    bench = Bench(
        num_blocks=64,
        window=6,
        num_slots=(64, 20),
        config=EngineConfig(num_step_tokens=16, num_max_sequences=2),
        draw=always,
    )
    bench.answer(PROMPT)
    bench.answer(PROMPT)
    bench.run_idle()
    assert counts(bench).mismatches == 0
    assert counts(bench).checked_blocks + counts(bench).skipped_hits > 0
    damage(bench, ACME, PROMPT, 1)
    bench.answer(PROMPT)
    bench.run_idle()
    assert counts(bench).mismatches == 1


def with_host_tier() -> tuple[Bench, ManualTransfers]:
    maker = ManualMaker()
    bench = Bench(16, num_host_blocks=64, make_mover=maker, vocab_size=4_000, draw=always)
    maker.transfers.decide = always_ends_well
    return bench, maker.transfers


def test_what_went_bad_in_the_hosts_memory_is_found_after_its_use() -> None:
    bench, _ = with_host_tier()
    bench.answer(PROMPT, sampling(1))
    bench.answer(range(1_000, 1_061), sampling(1))
    bench.run_idle()
    assert bench.engine.lookup(ACME, pack(PROMPT)) == CachedTokens(0, 40, 0)
    host = bench.inner.copier.host
    records = host.view(np.uint64).reshape(len(host), 4, RECORD_WIDTH)
    (slot,) = np.flatnonzero(records[:, 2, TOKEN] == PROMPT[14])
    records[slot, 2, CONTEXT] ^= 1
    assert bench.answer(PROMPT, sampling(1)).cached == CachedTokens(0, 40, 0)
    bench.run_idle()
    assert counts(bench).mismatches == 1
    assert bench.engine.lookup(ACME, pack(PROMPT)).total == 12
    key = bench.submit(PROMPT)
    bench.run_until_idle()
    bench.assert_exact(key)


def test_what_lies_below_goes_too() -> None:
    bench, _ = with_host_tier()
    long = [*PROMPT, *range(2_000, 2_019)]
    bench.answer(long, sampling(1))
    bench.answer(range(1_000, 1_021), sampling(1))
    found = bench.engine.lookup(ACME, pack(long))
    assert found.device >= 12
    assert found.host > 0
    bench.answer(PROMPT[:13], sampling(1))
    damage(bench, ACME, long, 1)
    bench.engine.drain_events()
    bench.run_idle()
    assert counts(bench).mismatches == 1
    assert bench.engine.lookup(ACME, pack(long)).total == 4
    removed = sum(len(each.digests) // 16 for each in bench.engine.drain_events() if each.change is BlockChange.REMOVED)
    assert removed >= found.total // 4 - 1


def test_paranoid_uses_nothing_that_was_cached() -> None:
    bench = Bench(config=PARANOID)
    bench.answer(PROMPT)
    again = bench.submit(PROMPT)
    bench.run_until_idle()
    assert bench.answers[again].cached_tokens == 0
    bench.assert_exact(again)
    assert counts(bench).checked_blocks >= 10
    assert counts(bench).mismatches == 0


@pytest.mark.parametrize("mode", [CacheMode.READ_WRITE, CacheMode.READ_ONLY])
def test_paranoid_finds_damage_before_anybody_reads_it(mode: CacheMode) -> None:
    bench = Bench(config=PARANOID)
    bench.answer(PROMPT)
    damage(bench, ACME, PROMPT, 3)
    with capture_logs() as logs:
        key = bench.submit(PROMPT, mode=mode)
        bench.run_until_idle()
    bench.assert_exact(key)
    assert [log["event"] for log in logs] == ["audit_mismatch"]
    assert counts(bench).mismatches == 1
    assert cached(bench, PROMPT) == (40 if mode is CacheMode.READ_WRITE else 12)


def test_paranoid_lets_those_go_on_that_hold_what_goes() -> None:
    bench = Bench(config=PARANOID)
    first = bench.submit(PROMPT, sampling(30))
    bench.step()
    bench.step()
    damage(bench, ACME, PROMPT, 9)
    with capture_logs():
        second = bench.submit(PROMPT, sampling(4))
        bench.run_until_idle()
    bench.assert_exact(second)
    assert bench.answers[first].has_ended
    assert counts(bench).mismatches == 1
    assert bench.engine.num_held_blocks == 0


def test_requests_that_bypass_the_cache_are_compared_with_nothing() -> None:
    bench = Bench(config=PARANOID)
    bench.answer(PROMPT)
    bench.answer(PROMPT, mode=CacheMode.BYPASS)
    assert counts(bench) == AuditCounts()
