"""Random traffic with random damage: audits find it all, and nothing else; paranoid engines never read any of it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from cache_store.audit_mode import AuditMode
from cache_store.domain import NO_ADAPTER
from cache_store.pool_sizes import ABSENT
from cache_store.prefix_tree import Block
from cache_store.tokens import pack
from tests.support.engines import ACME, GLOBEX, Bench, sampling
from worker.digest_rule import first_context, make_records
from worker.digest_runner import INSTANT
from worker.engine_config import EngineConfig

DOMAINS = (ACME, GLOBEX)


class Case:
    """One engine, and all prompts that it was asked for."""

    def __init__(self, seed: int, mode: AuditMode) -> None:
        self.random = Random(seed)
        choose = self.random.choice
        self.block_size = choose([2, 3, 4])
        config = EngineConfig(num_step_tokens=choose([8, 64]), num_max_sequences=4, audit=mode)
        num_blocks, window = choose([40, 80, 200]), choose([None, None, 2, 5])
        self.bench = Bench(num_blocks, self.block_size, window, 8, 64, config, durations=INSTANT, draw=lambda: 0.0)
        self.prompts: list[list[int]] = [[0]]

    def prompt(self) -> list[int]:
        """Begins as another one did."""
        known = self.random.choice(self.prompts)
        start = self.random.randrange(len(known) + 1)
        made = [*known[:start], *(self.random.randrange(8) for _ in range(self.random.randrange(1, 12)))][:48]
        self.prompts.append(made)
        return made

    def standing(self, prompt: list[int], tenant: int) -> list[Block]:
        return self.bench.engine._pool.audit.standing(DOMAINS[tenant], pack(prompt), len(prompt))

    def damage(self) -> tuple[list[int], int] | None:
        """Changes a record of a cached block; the prompt and the number of the tenant."""
        tenant, prompt = self.random.randrange(2), self.random.choice(self.prompts)
        reusable = self.standing(prompt, tenant)[: (len(prompt) - 1) // self.block_size]
        loose = [block for block in reusable if not block.ref_count]
        if not loose:
            return None
        slots = self.random.choice(loose).slots
        group = self.random.choice([group for group, slot in enumerate(slots) if slot != ABSENT])
        self.bench.inner.pools[group][slots[group], self.random.randrange(self.block_size), -1] ^= 1
        return prompt, tenant

    def num_unsound(self) -> int:
        """Blocks of known prompts that hold something else than they should."""
        unsound = set()
        for prompt in self.prompts:
            records = make_records(np.array(prompt, dtype=np.uint64), 0, first_context(NO_ADAPTER))
            for tenant in (0, 1):
                for number, block in enumerate(self.standing(prompt, tenant)):
                    own = records[number * self.block_size : (number + 1) * self.block_size]
                    for pool, slot in zip(self.bench.inner.pools, block.slots, strict=True):
                        if slot != ABSENT and not np.array_equal(pool[slot], own):
                            unsound.add(block.uid)
        return len(unsound)


@pytest.mark.parametrize("seed", range(6))
def test_sampled_audits_find_all_damage_that_was_hit_and_nothing_else(seed: int) -> None:
    case = Case(seed, AuditMode.SAMPLED)
    num_damaged = 0
    for _ in range(60):
        for _ in range(case.random.randrange(1, 4)):
            case.bench.answer(case.prompt(), sampling(3), domain=case.random.choice(DOMAINS))
        case.bench.run_idle()
        assert case.num_unsound() == 0
        if case.random.random() < 0.3 and (hit := case.damage()) is not None:
            prompt, tenant = hit
            assert case.num_unsound() == 1
            before = case.bench.engine.load().audit
            case.bench.answer(prompt, sampling(1), domain=DOMAINS[tenant])
            case.bench.run_idle()
            after = case.bench.engine.load().audit
            if after.skipped_hits == before.skipped_hits:
                num_damaged += 1
                assert after.mismatches == before.mismatches + 1
                assert case.num_unsound() == 0
            else:  # it was evicted, or there was no room: start again without it
                case.bench.engine._pool.drop(DOMAINS, [domain.tenant for domain in DOMAINS])
    counts = case.bench.engine.load().audit
    assert counts.mismatches == num_damaged > 0
    assert counts.checked_blocks > 20


@pytest.mark.parametrize("seed", range(6))
def test_paranoid_engines_answer_right_whatever_went_bad(seed: int) -> None:
    case = Case(seed, AuditMode.PARANOID)
    num_damaged = 0
    for _ in range(60):
        keys = [case.bench.submit(case.prompt(), sampling(3), domain=case.random.choice(DOMAINS)) for _ in range(3)]
        for _ in range(case.random.randrange(6)):
            case.bench.step()
            num_damaged += case.random.random() < 0.5 and case.damage() is not None
        case.bench.run_until_idle()
        case.bench.assert_exact(*keys)
    assert 0 < case.bench.engine.load().audit.mismatches <= num_damaged
