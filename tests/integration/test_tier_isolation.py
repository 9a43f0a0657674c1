"""Who may reuse what, tier by tier: others miss where the same domain hits, through a real worker.

Each check is also run with a worker that takes two domains for one, where it must fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from cache_store.domain import Domain
from cache_store.tier_kind import TierKind
from cache_store.usage import CachedTokens
from tests.support.memory_stores import MemoryStores
from tests.support.tiered_worker import NOTHING, ROOMY, TieredWorker, tiered_config, tiered_worker
from tests.support.worker_host import digest_domain

PROMPT = range(1, 66)
"""Four full blocks, and the token that is always computed."""
UNKNOWN = range(1_001, 1_066)
"""As long as PROMPT; nobody has sent it."""
ACME = digest_domain("acme")
OTHERS = {
    "tenant": digest_domain("globex"),
    "partition": digest_domain("acme", partition="p"),
    "epoch": digest_domain("acme", epoch="e2"),
}


class LeakError(AssertionError):
    """Somebody found what is not theirs."""


def worker(tier: TierKind, folder: Path) -> AbstractAsyncContextManager[TieredWorker]:
    return tiered_worker(tiered_config(ROOMY[tier], folder), MemoryStores().connect)


async def check_isolation(worker: TieredWorker, tier: TierKind, other: Domain) -> None:
    """`other` finds nothing of ACME's prompt on a tier, and ACME all of it."""
    await worker.sink(ACME, PROMPT, tier)
    mine = CachedTokens(**{tier: 64})
    for found in (await worker.matched(other, PROMPT), await worker.cached(other, PROMPT)):
        if found != NOTHING:
            raise LeakError(f"{found} of another domain")
    assert await worker.matched(ACME, PROMPT) == mine
    assert await worker.cached(ACME, PROMPT) == mine
    await worker.host.thread.call(lambda engine: engine.check_invariants(), 20)


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("tier", TierKind)
async def test_another_domain_misses_where_the_same_one_hits(tier: TierKind, kind: str, tmp_path: Path) -> None:
    async with worker(tier, tmp_path) as running:
        await check_isolation(running, tier, OTHERS[kind])


@pytest.mark.parametrize("tier", TierKind)
async def test_the_check_would_notice_a_shared_domain(tier: TierKind, tmp_path: Path) -> None:
    async with worker(tier, tmp_path) as running:
        with pytest.raises(LeakError):
            await check_isolation(running, tier, replace(OTHERS["tenant"], root=ACME.root))


async def answer(worker: TieredWorker, domain: Domain, prompt: Sequence[int]) -> tuple[bytes, bytes, bytes]:
    """What a request's start, tokens and end tell, but for times and how many tokens came at once."""
    first, *pieces, last = await worker.run(domain, prompt, max_tokens=4)
    for field in last.finished.DESCRIPTOR.fields:
        if field.name.endswith("_duration"):
            last.finished.ClearField(field.name)
    return first.SerializeToString(), b"".join(piece.tokens.packed for piece in pieces), last.SerializeToString()


async def transcript(worker: TieredWorker, domain: Domain) -> list[object]:
    """All that a tenant is told when it asks for PROMPT, and how many blocks that loaded."""
    before = await worker.tiers()
    told: list[object] = [(await worker.lookup(domain, PROMPT)).SerializeToString()]
    told += [await answer(worker, domain, prompt) for prompt in (PROMPT, PROMPT, PROMPT[:40])]
    told.append((await worker.lookup(domain, PROMPT)).SerializeToString())
    after = await worker.tiers()
    return [*told, [after[tier].loaded_blocks - before[tier].loaded_blocks for tier in after]]


@pytest.mark.parametrize("tier", TierKind)
async def test_nothing_that_a_tenant_is_told_depends_on_what_others_have_there(tier: TierKind, tmp_path: Path) -> None:
    """What another tenant is told, and the blocks that are loaded for it, beside a worker where nobody has sent it."""
    transcripts: dict[str, list[list[object]]] = {"acme": [], "globex": []}
    for number, prompt in enumerate((PROMPT, UNKNOWN)):
        for name, seen in transcripts.items():
            async with worker(tier, tmp_path / f"{number}{name}") as running:
                await running.sink(ACME, prompt, tier)
                seen.append(await transcript(running, digest_domain(name)))
    assert transcripts["globex"][0] == transcripts["globex"][1]
    assert transcripts["acme"][0] != transcripts["acme"][1], "the owner is told"
