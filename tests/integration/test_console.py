"""The console of a real router: who is let in, what is told, and what never is."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cache_store.tokens import pack
from services.cluster.valkey import EmbeddedValkey
from services.console.sessions import FAILURES_AT_ONCE
from tests.support.console_host import OWN, ConsoleClient, cluster_with_console
from tests.support.redis_servers import server_named
from tests.support.router_host import ADMIN_TOKEN, Cluster, tokens_request
from worker.block_look import Look
from worker.engine import Engine

PROMPT = list(range(100, 180))
PATHS = ("/api/live", "/api/requests", "/api/blocks?worker=worker-0", "/api/request?tenant=acme&id=r")


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_with_console(server_named(request, "valkey").urls, tmp_path) as made:
        yield made


@pytest.fixture
def console(cluster: Cluster) -> ConsoleClient:
    return ConsoleClient(cluster.router.console_url)


async def test_only_the_admin_key_opens_it(cluster: Cluster, console: ConsoleClient) -> None:
    for path in PATHS:
        assert (await console.ask(path)).status == 401
    for key in (secrets.token_hex(32), cluster.acme.key, ADMIN_TOKEN[:-1], ADMIN_TOKEN + "0"):
        assert (await console.log_in(key)).status == 401
        assert (await console.ask("/api/live")).status == 401
    answer = await console.log_in(ADMIN_TOKEN)
    assert answer.status == 200
    flags = answer.headers["set-cookie"]
    assert all(flag in flags for flag in ("HttpOnly", "SameSite=Strict", "Path=/"))
    assert ADMIN_TOKEN not in flags
    assert (await console.ask("/api/live")).status == 200
    assert (await console.ask("/api/logout", {})).status == 200
    assert (await console.ask("/api/live")).status == 401


async def test_wrong_keys_are_slowed_down_and_a_session_goes_on(console: ConsoleClient) -> None:
    assert (await console.log_in(ADMIN_TOKEN)).status == 200
    stranger = ConsoleClient(f"http://{console.address}/")
    statuses = [(await stranger.log_in("wrong")).status for _ in range(int(FAILURES_AT_ONCE) + 2)]
    assert statuses[: int(FAILURES_AT_ONCE)] == [401] * int(FAILURES_AT_ONCE)
    assert statuses[-1] == 429
    assert (await console.ask("/api/live")).status == 200


@pytest.mark.parametrize(
    "body", ["text", {}, {"key": 5}, {"key": ""}, {"key": "x" * 600}, {"key": "a\nb"}, {"key": "a b"}, ["key"]]
)
async def test_what_is_no_login_is_refused(console: ConsoleClient, body: object) -> None:
    assert (await console.ask("/api/login", body)).status == 400


async def test_another_sites_page_reaches_nothing(console: ConsoleClient) -> None:
    await console.log_in(ADMIN_TOKEN)
    for headers in (
        {},
        OWN | {"origin": "http://evil.example"},
        OWN | {"sec-fetch-site": "cross-site"},
        OWN | {"host": "evil.example"},
    ):
        for path, body in (("/api/live", None), ("/api/logout", {}), ("/api/login", {"key": ADMIN_TOKEN})):
            assert (await console.ask(path, body, headers)).status == 403
    assert (await console.ask("/api/live")).status == 200


async def test_everything_is_told_to_be_kept_nowhere(console: ConsoleClient) -> None:
    opened = await console.ask("/", headers={})
    assert opened.status == 200
    assert "default-src 'none'" in opened.headers["content-security-policy"]
    assert opened.headers["x-frame-options"] == "DENY"
    await console.log_in(ADMIN_TOKEN)
    for path in ("/", "/api/live", "/api/nothing"):
        answer = await console.ask(path)
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_it_tells_what_happened_and_neither_prompts_nor_keys(cluster: Cluster, console: ConsoleClient) -> None:
    for _ in range(2):
        await cluster.acme.generate(tokens_request(PROMPT, max_tokens=2, request_id="r"))
    await console.log_in(ADMIN_TOKEN)
    answers = [await console.ask(path) for path in PATHS]
    assert [each.status for each in answers] == [200] * 4
    live, requests, blocks, request = (each.told for each in answers)
    assert live["hit_rate"] == 0.0 if live["hit_rate"] is not None else True
    assert [(each["tenant"], each["request_id"], each["status"]) for each in requests] == [("acme", "r", "OK")]
    assert request["record"]["prompt_tokens"] == 80
    assert [len(line["table"]) for line in blocks["lines"]] == [5]
    said = b"".join(each.body for each in answers)
    for secret in (ADMIN_TOKEN, cluster.acme.key, cluster.globex.key):
        assert secret.encode() not in said
    for hidden in (str(PROMPT[:3])[1:-1], "digest", "fence", "salt"):
        assert hidden.encode() not in said.replace(b"token-digest", b"")
    assert pack(PROMPT[:2]) not in said


async def test_the_block_map_is_the_engines(cluster: Cluster, console: ConsoleClient) -> None:
    await cluster.globex.generate(tokens_request(PROMPT, max_tokens=2))
    await console.log_in(ADMIN_TOKEN)
    told = (await console.ask("/api/blocks?worker=worker-0")).told

    def look(engine: Engine) -> Look:
        return engine.look.take()

    taken = await cluster.workers[0].thread.call(look, 10)
    assert [[cell[1] for cell in line["table"]] for line in told["lines"]] == [
        [cell.number for cell in line.cells] for line in taken.lines
    ]
    assert (await console.ask("/api/blocks?worker=nobody")).status == 404
    assert (await console.ask("/api/request?tenant=acme&id=never")).status == 404
