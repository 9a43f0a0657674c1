"""Names of blocks for tests."""

from __future__ import annotations

from cache_store.block_name import BlockName
from cache_store.digest import block_digest
from cache_store.tokens import pack
from tests.support.domains import make_domain


def make_name(tenant: str = "acme", number: int = 0, block_size: int = 4) -> BlockName:
    """A first block of the tenant, whose tokens follow from its number."""
    root = make_domain(tenant).root
    tokens = pack(range(number * block_size, (number + 1) * block_size))
    return BlockName(root, root, block_digest(root, tokens), tokens, number)
