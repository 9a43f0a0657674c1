"""What the advice says in words."""

from __future__ import annotations

from services.cli.quota_advice import sentence
from services.client.quota_advice import QuotaAdvice, QuotaPoint


def advice(*hit_shares: float) -> QuotaAdvice:
    """Of a tenant that hits so much with 10 %, 12 % and all of the blocks."""
    shares = zip((0.1, 0.12, 1.0), hit_shares, strict=True)
    points = tuple(QuotaPoint(share, round(1_000 * share), hits) for share, hits in shares)
    return QuotaAdvice(
        base=points[0],
        is_guaranteed=False,
        used_share=0.1,
        found_share=0.0,
        asked_blocks=5_000.0,
        points=points,
        enough=points[1],
        num_workers=1,
        num_missing=0,
    )


def test_it_tells_what_more_room_would_bring_and_how_much_is_enough() -> None:
    told = sentence(advice(0.2, 0.3, 0.31))
    assert told.startswith("hits 20% with the 10.0% that it has now; with 20% more, hits +10.0 points; ")
    assert told.endswith("12.0% of the blocks would bring 95% of what all of them could")


def test_where_all_blocks_bring_nothing_no_part_of_them_is_enough() -> None:
    assert sentence(advice(0.0, 0.0, 0.0)) == "nothing that was asked for came again, so no room would bring hits"
