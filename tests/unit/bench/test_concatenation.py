from __future__ import annotations

from tests.bench.concatenation import count_copied_tokens


def test_every_old_token_is_copied_for_every_new_one() -> None:
    assert count_copied_tokens(64) == 64 * 63 // 2
