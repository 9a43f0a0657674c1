"""The known errors, each with the test that must notice it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One error: what it is, where it goes in, and which test turns red."""

    name: str
    what: str
    file: str
    before: str
    after: str
    test: str


POOL = "tests/unit/cache_store/test_block_pool.py"

MUTANTS = (
    Mutant(
        "tenant-dropped",
        "the tenant is left out of the domain root",
        "cache_store/domain.py",
        "data = encode(tenant, epoch, partition, bytes(kv_format))\n    root = hashlib.blake2b(data, key=secret,",
        "data = encode(epoch, partition, bytes(kv_format))\n    root = hashlib.blake2b(data, key=bytes(32),",
        f"{POOL}::test_the_same_domain_hits_and_another_misses",
    ),
    Mutant(
        "token-check-off",
        "blocks are matched by digest instead of by tokens",
        "cache_store/prefix_tree.py",
        "node = node.children.get(PackedTokens(tokens[start : start + width]))",
        "wanted = block_digest(node.digest, PackedTokens(tokens[start : start + width]), self._hasher)\n"
        "            node = next((child for child in node.children.values() if child.digest == wanted), None)",
        f"{POOL}::test_a_constant_hash_changes_no_match",
    ),
    Mutant(
        "mac-unchecked",
        "the MAC of the request token is not compared",
        "cache_store/request_token.py",
        "if not hmac.compare_digest(mac, _mac(cluster_key, body)):",
        "if len(mac) != _MAC_BYTES:",
        "tests/unit/cache_store/test_request_token.py::test_another_key_is_refused",
    ),
    Mutant(
        "scrub-off",
        "slots that held another domain's bytes are handed out as they are",
        "cache_store/block_pool.py",
        "return last is not None and last != domain.root",
        "return False",
        f"{POOL}::test_slots_that_change_domain_are_scrubbed_and_others_not",
    ),
    Mutant(
        "pin-missing",
        "matched blocks are not pinned",
        "cache_store/block_pool.py",
        "        for block in match.pinned:\n            self._hold(block)\n        return match",
        "        return match",
        f"{POOL}::test_pinned_blocks_are_not_evicted",
    ),
)
