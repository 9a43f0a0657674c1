"""The device pool satisfies the tier protocol: checked by the type checker and by name."""

from __future__ import annotations

import inspect

from cache_store.block_pool import BlockPool
from cache_store.tiers import Tier


def test_the_block_pool_offers_what_a_tier_offers() -> None:
    for name, member in vars(Tier).items():
        if name.startswith("_"):
            continue
        offered = getattr(BlockPool, name)
        if inspect.isfunction(member):
            assert inspect.signature(offered) == inspect.signature(member), name


def test_the_domain_comes_first_wherever_blocks_are_named() -> None:
    for name in ("match_length", "match_and_pin", "allocate", "commit"):
        assert list(inspect.signature(getattr(Tier, name)).parameters)[1] == "domain"
