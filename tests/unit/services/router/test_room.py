"""How much fits, within a tenant's own part of a pool."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cache_store.quota import WHOLE_POOL, PoolPart, TierShare
from services.router.room import Extent, answer_room, fits, longest_prompt, too_large
from tests.support.worker_records import worker_record

STRICT = TierShare(0.25, 0.25)
PARTS = st.sampled_from([WHOLE_POOL, PoolPart(TierShare(0.0, 0.75)), PoolPart(others_strict=(STRICT, STRICT))])


@given(PARTS, st.integers(4, 12), st.integers(1, 4), st.integers(2, 200), st.integers(2, 16))
def test_every_prompt_up_to_the_longest_has_room_for_an_answer(
    part: PoolPart, num_blocks: int, n: int, max_model_len: int, block_size: int
) -> None:
    record = worker_record("a", num_blocks=num_blocks, max_model_len=max_model_len, block_size=block_size)
    longest = longest_prompt(record, part, n)
    assert all(answer_room(record, part, prompt, n) >= 1 for prompt in range(1, longest + 1))
    assert answer_room(record, part, longest + 1, n) < 1


@given(PARTS, st.integers(1, 40), st.integers(1, 300), st.integers(1, 5))
def test_exactly_that_much_fits_into_the_pool(part: PoolPart, num_blocks: int, prompt: int, n: int) -> None:
    record = worker_record("a", num_blocks=num_blocks, max_model_len=10_000)

    def blocks(max_tokens: int) -> int:
        shared = prompt // 16
        return shared + n * (-(-(prompt + max_tokens - 1) // 16) - shared)

    room = answer_room(record, part, prompt, n)
    if room >= 1:
        assert blocks(room) <= part.max_blocks(num_blocks) < blocks(room + 1)


def test_what_exceeds_the_tenants_part_is_refused_with_its_own_numbers_whatever_others_have() -> None:
    record = worker_record("a", num_blocks=40, max_model_len=10_000)
    extent = Extent(prompt_tokens=320, max_tokens=8, num_samples=1)
    assert fits(record, WHOLE_POOL, extent)
    own = PoolPart(TierShare(0.0, 0.25))
    assert not fits(record, own, extent)
    beside_a_strict_one = PoolPart(own.share, others_strict=(TierShare(0.7, 0.7),))
    assert str(too_large([record], own, extent)) == str(too_large([record], beside_a_strict_one, extent))
    assert "your part of a worker's cache is 160; with n = 1 a prompt of up to 160 tokens" in str(
        too_large([record], own, extent)
    )
