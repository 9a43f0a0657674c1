"""Counts of what tenants asked of the cache and found in it."""

from __future__ import annotations

from cache_store.registry import WorkerId
from cache_store.usage import CachedTokens
from services.router.generation import Started, Timings
from services.router.traffic import TenantTraffic, Traffic

TIMINGS = Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0)


def started(prompt_tokens: int, cached: CachedTokens) -> Started:
    return Started(prompt_tokens, cached, WorkerId("w"), 1, False, 0, 1, TIMINGS, 0.0)


def test_tokens_are_counted_by_tenant_and_tier() -> None:
    traffic = Traffic()
    traffic.note("acme", started(100, CachedTokens(16, 8, 4, 2)))
    traffic.note("acme", started(50, CachedTokens(device=16)))
    traffic.note("globex", started(10, CachedTokens()))
    assert traffic.tenants == {
        "acme": TenantTraffic(2, 150, 32, 8, 4, 2),
        "globex": TenantTraffic(1, 10),
    }


def test_who_asked_longest_ago_is_forgotten() -> None:
    traffic = Traffic(max_tenants=2)
    for name in ("a", "b", "a", "c"):
        traffic.note(name, started(1, CachedTokens()))
    assert set(traffic.tenants) == {"a", "c"}
