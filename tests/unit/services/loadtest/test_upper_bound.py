"""The upper bound of a workload: against a naive count, and what it takes into account."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cache_store.tokens import PackedTokens, common_prefix, count, pack
from services.loadtest.upper_bound import PrefixLedger, SentPrompt, cacheable_tokens

BLOCK = 4
PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=14).map(pack), max_size=12)


def naive(tokens: PackedTokens, before: list[PackedTokens]) -> int:
    full = [each[: len(each) // (BLOCK * 4) * BLOCK * 4] for each in before]
    return max(0, min(count(tokens) - 1, max((common_prefix(tokens, each) for each in full), default=0)))


@given(PROMPTS)
def test_it_is_what_a_prompt_shares_with_the_full_blocks_of_an_earlier_one(prompts: list[PackedTokens]) -> None:
    ledger = PrefixLedger(BLOCK)
    for at, tokens in enumerate(prompts):
        assert ledger.bound(tokens) == naive(tokens, prompts[:at])
        ledger.add(tokens)


def sent(tenant: str, at_s: float, prompt: list[int], answer: list[int] = [], end_s: float = 99.0) -> SentPrompt:  # noqa: B006
    return SentPrompt(tenant, at_s, end_s, (pack(prompt),), pack(answer))


def test_another_tenants_prompts_count_for_nothing() -> None:
    same = list(range(8))
    assert cacheable_tokens([sent("a", 0, same), sent("b", 1, same), sent("a", 2, same)], [], BLOCK) == [0, 0, 7]


def test_what_was_primed_counts_for_its_tenant() -> None:
    prompt = list(range(8))
    found = cacheable_tokens([sent("a", 0, prompt), sent("b", 1, prompt)], [("a", pack(prompt))], BLOCK)
    assert found == [7, 0]


def test_an_answer_counts_from_its_end_without_its_last_token() -> None:
    first = sent("a", 0, [1, 2], [3, 4, 5], end_s=2)
    before, after = sent("a", 1, [1, 2, 3, 4, 9]), sent("a", 3, [1, 2, 3, 4, 5])
    assert cacheable_tokens([first, before], [], BLOCK) == [0, 0]
    assert cacheable_tokens([first, after], [], BLOCK) == [0, 4]


def test_bounds_come_in_the_order_of_the_requests_not_of_time() -> None:
    prompt = list(range(8))
    assert cacheable_tokens([sent("a", 5, prompt), sent("a", 1, prompt)], [], BLOCK) == [7, 0]
