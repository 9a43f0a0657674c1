"""`stemcache top` against a router and workers: what it shows is what happened."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.widgets import DataTable

from services.client import AdminClient
from services.cluster.valkey import EmbeddedValkey
from services.console.history import History
from services.console.watch import Watch
from services.top.app import TopApp
from tests.support.redis_servers import server_named
from tests.support.router_host import ADMIN_TOKEN, running_cluster, tokens_request

PROMPT = list(range(100, 164))


async def test_hits_of_real_requests_are_shown(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path) as cluster:
        with AdminClient(cluster.router.admin_address, ADMIN_TOKEN) as client:
            app = TopApp(Watch(client, History()), 0.2)
            async with app.run_test(size=(150, 40)) as pilot:
                while app.view is None:
                    await asyncio.sleep(0.02)
                assert app.view.hit_rate is None
                for _ in range(2):
                    await cluster.acme.generate(tokens_request(PROMPT, max_tokens=2))
                await cluster.globex.generate(tokens_request(PROMPT, max_tokens=2))
                while not (app.view.tenants[0].tiers[0].used_blocks and app.view.requests_per_s):
                    await asyncio.sleep(0.02)
                await pilot.pause(0.3)
                view = app.view
                hits = {each.name: each.hit_rate for each in view.tenants}
                assert hits == {"acme": pytest.approx(63 / 128), "globex": 0.0}
                assert view.hit_rate == pytest.approx(63 / 192)
                table = app.query_one("#tenants", DataTable)
                assert {str(table.get_row_at(at)[0]) for at in range(table.row_count)} == {"acme", "globex"}
