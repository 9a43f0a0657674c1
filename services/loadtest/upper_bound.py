"""Most prompt tokens that any cache could have had: what a prompt shares with all that its tenant sent before it.

Counted as a cache of full blocks can reuse it: whole blocks, and the beginning of a block that goes on otherwise. The
last token of a prompt is always computed. Holds digests of blocks and their content; one ledger per tenant.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

from cache_store.tokens import TOKEN_BYTES, PackedTokens, common_prefix, count


class PrefixLedger:
    """What was sent so far, as chains of blocks."""

    def __init__(self, block_tokens: int) -> None:
        self._block_bytes = block_tokens * TOKEN_BYTES
        self._block_tokens = block_tokens
        self._below: dict[bytes, list[bytes]] = {b"": []}
        """Contents of the blocks that follow a chain, sorted; a chain is named by its digest."""

    def add(self, tokens: PackedTokens) -> None:
        """Notes what is sent, or has been answered: its full blocks."""
        chain, size = b"", self._block_bytes
        for start in range(0, len(tokens) - size + 1, size):
            block = tokens[start : start + size]
            below = self._below[chain]
            chain = xxhash.xxh3_128_digest(chain + block)
            if chain not in self._below:
                self._below[chain] = []
                insort(below, block)

    def bound(self, tokens: PackedTokens) -> int:
        """Tokens of a prompt that could be cached now."""
        chain, size, num_matched = b"", self._block_bytes, 0
        for start in range(0, len(tokens) - size + 1, size):
            following = xxhash.xxh3_128_digest(chain + tokens[start : start + size])
            if following not in self._below:
                break
            chain = following
            num_matched += self._block_tokens
        num_matched += self._partial(self._below[chain], tokens[num_matched * TOKEN_BYTES :])
        return max(0, min(num_matched, count(tokens) - 1))

    def _partial(self, below: list[bytes], rest: bytes) -> int:
        """Tokens that `rest` has in common with the block below that is most like it: a neighbour in order."""
        block = rest[: self._block_bytes]
        at = bisect_left(below, block)
        return max((common_prefix(each, block) for each in below[max(0, at - 1) : at + 1]), default=0)


@dataclass(frozen=True, slots=True)
class SentPrompt:
    """A request as the bound needs it."""

    tenant: str
    sent_s: float
    end_s: float
    prompt: tuple[PackedTokens, ...]
    answer: PackedTokens
    """Empty where it failed."""


def cacheable_tokens(
    requests: Iterable[SentPrompt], primed: Iterable[tuple[str, PackedTokens]], block_tokens: int
) -> list[int]:
    """The bound of each request, in the order given; `primed` are prompts that were cached before, by tenant.

    A request can reuse prompts that were sent before it, also ones that still run, and answers that had ended.
    """
    ledgers: dict[str, PrefixLedger] = {}

    def ledger(tenant: str) -> PrefixLedger:
        return ledgers.setdefault(tenant, PrefixLedger(block_tokens))

    for tenant, tokens in primed:
        ledger(tenant).add(tokens)
    given = list(requests)
    events = [(each.sent_s, 1, index) for index, each in enumerate(given)]
    events += [(each.end_s, 0, index) for index, each in enumerate(given) if count(each.answer) > 1]
    bounds = [0] * len(given)
    for _, is_start, index in sorted(events):
        each = given[index]
        prompt = PackedTokens(b"".join(each.prompt))
        if is_start:
            bounds[index] = ledger(each.tenant).bound(prompt)
            ledger(each.tenant).add(prompt)
        else:  # the last token of an answer is never written to the cache
            ledger(each.tenant).add(PackedTokens(prompt + each.answer[:-TOKEN_BYTES]))
    return bounds
