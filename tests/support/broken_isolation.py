"""Isolation that is broken on purpose, and the isolation test on a cluster in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from cache_store.domain import Domain, Epoch, FormatDigest, TenantId, derive_domain
from services.loadtest.isolation.assertion import Assertion, Listeners, Wanted, assert_isolation
from services.loadtest.isolation.client_prober import client_prober
from services.loadtest.isolation.samples import Answer, Party, Prober, Variant
from tests.support.router_host import MODEL, Cluster

COARSE_LIMIT = 0.80
"""Few requests, for a test of the test."""


class Mute:
    """Passes on what a prober sees but for cached tokens that are not the tenant's own: times alone have to tell."""

    def __init__(self, prober: Prober) -> None:
        self._prober = prober
        self._sent: set[tuple[Party, tuple[int, ...]]] = set()

    async def ask(self, party: Party, prompt: Sequence[int]) -> Answer:
        answer = await self._prober.ask(party, prompt)
        asked = (party, tuple(prompt))
        own = asked in self._sent
        self._sent.add(asked)
        return answer if own else dataclasses.replace(answer, cached_tokens=0)


class ForgottenTenant:
    """In place of `derive_domain`: whoever comes first, everybody gets its domain."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, FormatDigest], Domain] = {}

    def __call__(
        self, secret: bytes, tenant: TenantId, epoch: Epoch, partition: str, kv_format: FormatDigest, *rest: Any
    ) -> Domain:
        own = derive_domain(secret, tenant, epoch, partition, kv_format, *rest)
        return self._first.setdefault((partition, kv_format), own)


async def asserted(
    cluster: Cluster, limits: tuple[float, ...], variants: tuple[Variant, ...], *, mute: type[Mute] | None = None
) -> Assertion:
    keys = {Party.LEFT: cluster.acme.key, Party.RIGHT: cluster.globex.key}
    lines: list[str] = []
    async with client_prober(cluster.router.address, keys, MODEL) as (prober, card):
        asker = prober if mute is None else mute(prober)
        wanted = Wanted(limits, 1e9, variants, seed=3)
        listeners = Listeners(lines.append, lambda variant, done, of: None)
        found = await assert_isolation(asker, card.vocab_size, card.max_model_len - 1, wanted, listeners)
    print(*lines, *found.verdict.variants, found.reason, sep="\n")
    return found
