"""The console's page in headless Chromium: it shows the engine's own block tables, and names are text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page
from stemcache.admin.v1 import admin_pb2
from stemcache.worker.v1 import block_map_pb2

from cache_store.clock import SystemClock
from cache_store.policies.choice import PolicyKind
from cache_store.prefix_tree import Block
from services.cluster.valkey import EmbeddedValkey
from services.console.running import running_console
from tests.support.console_host import cluster_with_console
from tests.support.pictures import EVIL
from tests.support.redis_servers import server_named
from tests.support.router_host import ADMIN_TOKEN, Cluster, tokens_request
from tests.support.scripted_admin import ScriptedAdmin
from worker.config import NumBlocks
from worker.engine import Engine

pytestmark = pytest.mark.slow

PROMPT = list(range(100, 180))
NUM_BLOCKS = 24
WAIT_MS = 20_000

READ_TABLE = """() => Array.from(document.querySelectorAll('#table .cell'), (each) => ({ ...each.dataset }))"""
READ_PHASES = """() => Array.from(document.querySelectorAll('#detail .lane'), (each) => each.dataset.phase)"""
READ_POOL = """() => document.getElementById('pool').dataset.states"""


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Cluster]:
    worker = {"pool": NumBlocks(NUM_BLOCKS), "eviction_policy": PolicyKind.LRU, "digest_step_s": 0.4}
    async with cluster_with_console(server_named(request, "valkey").urls, tmp_path, (worker,)) as made:
        yield made


@asynccontextmanager
async def opened(browser: Browser, url: str, **context: Any) -> AsyncIterator[Page]:
    """A page that nobody has logged in to; it must neither raise nor be refused anything by its own policy."""
    complaints: list[str] = []
    made = await browser.new_context(viewport={"width": 1280, "height": 800}, **context)
    page = await made.new_page()
    page.set_default_timeout(WAIT_MS)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if "Content Security" in said.text else None)
    page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
    await page.goto(url)
    await page.wait_for_selector("#key:visible")
    yield page
    await made.close()
    assert complaints == []


async def log_in(page: Page, key: str = ADMIN_TOKEN) -> None:
    await page.fill("#key", key)
    await page.click("#login-form button")


async def show(page: Page, view: str) -> None:
    await page.click(f"nav [data-view={view}]")


async def eventually(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await what():
            await asyncio.sleep(0.1)


async def says(page: Page, where: str, what: str) -> None:
    """Waits for words in a part of the page."""

    async def said() -> bool:
        return what in (await page.text_content(where) or "")

    await eventually(said)


async def tables(cluster: Cluster) -> tuple[list[list[int]], list[list[int]], str]:
    """The engine's own: block tables of running sequences, lines of cached blocks, the state of every block."""

    def read(engine: Engine) -> tuple[list[list[int]], list[list[int]], str]:
        running = [list(each.tables[0]) for each in engine._scheduler.running]
        cached = []
        for _, leaf in engine._pool.matching.leaves():
            line, node = [], leaf
            while isinstance(node, Block):
                line.append(node.number)
                node = node.parent  # type: ignore[assignment]
            if not leaf.ref_count:
                cached.append(line[::-1])
        states = {}
        for block in engine._pool.blocks:
            holders = min(block.ref_count, 2)
            states[block.number] = (2 + holders if block.in_tree else 2) if holders else int(block.in_tree)
        return running, cached, "".join(str(states[number]) for number in range(NUM_BLOCKS))

    return await cluster.workers[0].thread.call(read, 10)


async def test_the_block_map_is_the_engines_before_and_after_an_eviction(cluster: Cluster, browser: Browser) -> None:
    async def shows(page: Page, wanted: Callable[[Any], list[int]]) -> bool:
        """Whether table and pool of the page are those of the engine, which did not change meanwhile."""
        before = await tables(cluster)
        numbers = [int(each["number"]) for each in await page.evaluate(READ_TABLE) if not int(each["marks"]) & 64]
        states = await page.evaluate(READ_POOL)
        return before == await tables(cluster) and numbers == wanted(before) and states == before[2]

    await cluster.acme.generate(tokens_request(PROMPT, max_tokens=2))
    async with opened(browser, cluster.router.console_url) as page:
        await log_in(page)
        await show(page, "blocks")
        await page.wait_for_selector("#lines .item")
        await eventually(lambda: shows(page, lambda now: now[1][0]))
        (before,) = (await tables(cluster))[1]
        assert len(before) == 5
        await page.click("#lines .item")
        flood = cluster.globex.stream(tokens_request(range(300, 620), max_tokens=64, request_id="flood"))
        await flood.read()
        await page.wait_for_selector("#sequences .item[data-request=flood]")
        await page.click("#sequences .item[data-request=flood]")
        await eventually(lambda: shows(page, lambda now: now[0][0]))
        after = await tables(cluster)
        assert set(after[0][0]) & set(before), "the flood was given blocks that had been cached"
        assert before not in after[1], "what was cached was evicted"
        assert await page.inner_text("#chosen-title") == "flood of globex"
        await cluster.globex.cancel("flood")
        flood.cancel()
        await says(page, "#chosen-note", "it has ended")
        await cluster.nothing_left()

        async def shows_what_became() -> bool:
            cells = await page.evaluate(READ_TABLE)
            states = (await tables(cluster))[2]
            names = {"0": "free", "1": "cached"}
            return [each["now"] for each in cells] == [names[states[int(each["number"])]] for each in cells]

        await eventually(shows_what_became)


async def test_shared_blocks_and_copies_are_marked(cluster: Cluster, browser: Browser) -> None:
    await cluster.acme.generate(tokens_request(PROMPT, max_tokens=2))
    calls = []
    for name, prompt in (("one", PROMPT), ("two", [*PROMPT[:40], *range(500, 520)])):
        calls.append(cluster.acme.stream(tokens_request(prompt, max_tokens=90, request_id=name)))
        await calls[-1].read()
    async with opened(browser, cluster.router.console_url) as page:
        await log_in(page)
        await show(page, "blocks")
        await page.click("#sequences .item[data-request=two]")
        await says(page, "#chosen-title", "two of acme")
        cells = await page.evaluate(READ_TABLE)
        assert [(each["kind"], each["holders"]) for each in cells[:2]] == [("shared", "2"), ("shared", "2")]
        assert [int(each["marks"]) & 8 for each in cells[:3]] == [8, 8, 0]
        assert int(cells[2]["marks"]) & 32
        texts = [await each.inner_text() for each in await page.query_selector_all("#table .cell")]
        assert "×2" in texts[0]
        assert "copy of" in texts[2]
    for name, call in zip(("one", "two"), calls, strict=True):
        await cluster.acme.cancel(name)
        call.cancel()


async def test_a_requests_time_and_its_reasons_are_shown(cluster: Cluster, browser: Browser) -> None:
    for name in ("first", "again"):
        await cluster.acme.generate(tokens_request(PROMPT, max_tokens=4, request_id=name))
    async with opened(browser, cluster.router.console_url, color_scheme="light") as page:
        await log_in(page)
        await show(page, "requests")
        await page.click("#requests tr[data-request=again]")
        await page.wait_for_selector("#detail .lane")
        lanes = await page.evaluate(
            "() => Array.from(document.querySelectorAll('#detail .lane'), (e) => e.dataset.phase)"
        )
        assert lanes == ["route", "queue", "load", "prefill", "decode"]
        said = await page.inner_text("#detail")
        assert "worker-0: the only one that could take it" in said
        assert "79 of 80 prompt tokens were reused" in said
        assert "null" not in said
        assert await page.evaluate("document.documentElement.dataset.theme") == "light"


async def test_wrong_keys_are_refused_and_a_right_one_lasts_until_log_out(cluster: Cluster, browser: Browser) -> None:
    async with opened(browser, cluster.router.console_url) as page:
        for key in ("wrong", cluster.acme.key):
            await log_in(page, key)
            await says(page, "#login-error", "this is not the admin key")
            assert not await page.is_visible("#console")
            await page.evaluate("document.querySelector('#login-error').textContent = ''")
        await log_in(page)
        await page.wait_for_selector("#workers [data-worker='worker-0']")
        assert await page.evaluate("document.cookie") == ""
        assert ADMIN_TOKEN not in page.url + await page.content()
        await page.reload()
        await page.wait_for_selector("#workers [data-worker='worker-0']")
        await page.click("#logout")
        await page.wait_for_selector("#key:visible")
        await page.reload()
        await page.wait_for_selector("#key:visible")
        assert "worker-0" not in await page.content()


@pytest.mark.parametrize("mobile", [False, True])
async def test_names_are_text_and_nothing_else(admin: ScriptedAdmin, browser: Browser, mobile: bool) -> None:
    worker = admin.status.workers.add(worker_id=EVIL, model=EVIL, total_blocks=8, quota_generation=1)
    worker.tenants.add(tenant=EVIL, used_blocks=4)
    admin.status.refused_workers.append(EVIL)
    record = admin_pb2.GetRequestRecordResponse(tenant=EVIL, request_id=EVIL, model=EVIL, status=EVIL)
    record.terms.add(worker_id=EVIL)
    record.terms.add(worker_id=EVIL)
    admin.records.append(record)
    table = block_map_pb2.BlockTable(tiers=b"\0", numbers=[1], holders=[1], uids=[1], marks=b"\0")
    admin.block_map = block_map_pb2.BlockMap(num_blocks=8, states=bytes(8), owners=bytes(8), generations=bytes(16))
    admin.block_map.tenants.append(EVIL)
    admin.block_map.pool_tenants.append(0)
    admin.block_map.sequences.add(request_id=EVIL, table=table)
    async with running_console("127.0.0.1:0", admin.address, None, SystemClock()) as url:
        size = {"viewport": {"width": 390, "height": 844}} if mobile else {}
        async with opened(browser, url) as page:
            if size:
                await page.set_viewport_size(size["viewport"])  # type: ignore[arg-type]
            await log_in(page)
            await page.wait_for_selector("#tenants tbody tr")
            assert EVIL.strip() in (await page.text_content("#tenants tbody") or "")
            await show(page, "blocks")
            await page.wait_for_selector("#table .cell")
            await page.select_option("#pool-colour", "tenant")
            assert "<img" in (await page.text_content("#chosen-title") or "")
            await show(page, "requests")
            await page.click("#requests tr.pick")
            await page.wait_for_selector("#detail .lane")
            assert await page.evaluate("document.querySelectorAll('img').length") == 0
            wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, "the page is not wider than its window"
