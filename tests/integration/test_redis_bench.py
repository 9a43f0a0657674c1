"""The bench of lookups runs, and what it times gives the right answers."""

from __future__ import annotations

from services.cluster.valkey import EmbeddedValkey
from tests.bench.index_lookup import report, run


async def test_it_measures_every_case(valkey: EmbeddedValkey) -> None:
    made = await run(valkey.urls, num_held=1_000, num_rounds=3)
    assert all(
        each.server_us > 0 for each in made if each.command not in ("ping", "")
    )  # a PING takes less than is counted
    assert all(len(each.walls_us) == 3 for each in made)
    report(made)
