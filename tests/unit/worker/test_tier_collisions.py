"""Blocks whose digests collide are told apart on every tier: a digest names nothing there."""

from __future__ import annotations

import pytest

from cache_store.policies.choice import PolicyKind
from cache_store.tier_kind import TierKind
from cache_store.tokens import pack
from cache_store.usage import CachedTokens
from tests.support.engines import ACME, GLOBEX, Bench, sampling
from tests.support.manual_transfers import ManualMaker, always
from worker.engine_config import EngineConfig

TAIL = range(50, 58)
PROMPTS = [[*range(first, first + 4), *TAIL, 7] for first in (10, 20, 30)]
"""Three full blocks of four tokens each, of which two are the same; and a last token."""
SIZES = {TierKind.HOST: (8, 128, 0), TierKind.DISK: (8, 12, 128)}


def constant(_: bytes) -> bytes:
    """A hash that always collides."""
    return bytes(16)


@pytest.mark.parametrize("tier", SIZES)
def test_with_a_constant_hash_everything_comes_back_to_where_it_belongs(tier: TierKind) -> None:
    num_blocks, num_host_blocks, num_disk_blocks = SIZES[tier]
    bench = Bench(
        num_blocks,
        config=EngineConfig(eviction_policy=PolicyKind.LRU),
        hasher=constant,
        num_host_blocks=num_host_blocks,
        make_mover=ManualMaker(num_disk_blocks=num_disk_blocks, decide=always),
        vocab_size=4_000,
    )
    owners = [(domain, prompt) for domain in (ACME, GLOBEX) for prompt in PROMPTS]
    for domain, prompt in owners:
        bench.answer(prompt, sampling(max_tokens=1), domain=domain)
    for first in range(1_000, 1_600, 100):
        for domain in (ACME, GLOBEX):  # what each has is its own to displace
            bench.answer(range(first, first + 28), sampling(max_tokens=1), domain=domain)
    for domain, prompt in owners:
        assert bench.engine.lookup(domain, pack(prompt)) == CachedTokens(**{tier: 12})
    for domain, prompt in reversed(owners):
        key = bench.submit(prompt, domain=domain)
        bench.run_until_idle()
        bench.assert_exact(key)
        assert bench.answers[key].cached == CachedTokens(**{tier: 12})
