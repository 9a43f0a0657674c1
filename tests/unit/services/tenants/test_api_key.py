"""The text of API keys."""

from __future__ import annotations

import pytest

from cache_store.domain import TenantId
from services.tenants.api_key import matches, new_api_key, parse, secret_hash
from services.tenants.model import KeyId

KEY_ID = "abcdefgh234567aa"
SECRET = "a" * 52
GOOD = f"sc-{KEY_ID}-{SECRET}"


def test_a_new_key_parses_and_matches_its_hash_only() -> None:
    a, b = (new_api_key(TenantId("t"), 1.0) for _ in range(2))
    parsed = parse(a.text)
    assert parsed is not None
    assert parsed.key_id == a.key.key_id
    assert matches(parsed, a.key.secret_hash)
    assert not matches(parsed, b.key.secret_hash)
    assert a.key.secret_hash != b.key.secret_hash


def test_a_key_carries_its_bits() -> None:
    texts = [new_api_key(TenantId("t"), 1.0).text for _ in range(200)]
    assert len(set(texts)) == 200
    assert {len(text) for text in texts} == {len(GOOD)}
    for position in range(3, 19):  # 16 characters of 5 random bits each
        assert len({text[position] for text in texts}) > 16
    for position in range(20, 71):  # 51 of the secret's 52; the last holds the remaining bit
        assert len({text[position] for text in texts}) > 16


def test_the_hash_holds_still_and_covers_the_id() -> None:
    assert (
        secret_hash(KeyId(KEY_ID), SECRET).hex() == "d3d7a1808222d8a6d8ede5f0683a3fde05add81b26e7997ae03e329e004775a5"
    )
    assert secret_hash(KeyId("b" * 16), SECRET) != secret_hash(KeyId(KEY_ID), SECRET)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sc",
        "sc--",
        SECRET,
        GOOD[1:],
        GOOD[:-1],
        GOOD + "a",
        GOOD + "\n",
        " " + GOOD,
        GOOD.upper(),
        GOOD.replace("-", "_"),
        GOOD.replace("aa", "a1"),
        GOOD.replace("aa", "a="),
        f"sc-{KEY_ID}-{'ａ' * 52}",
        f"sk-{KEY_ID}-{SECRET}",
        f"sc-{KEY_ID}x-{SECRET}",
        f"Bearer {GOOD}",
        GOOD + GOOD,
    ],
)
def test_anything_else_is_no_key(text: str) -> None:
    assert parse(GOOD) is not None
    assert parse(text) is None
