"""Load on a server with OpenAI's API: one in this process that counts what it is sent and caches prefixes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from cache_store.errors import PreconditionError, UnavailableError
from cache_store.tokens import pack
from services.cli.exit_codes import ExitCode
from services.cli.loadtest_running import write_run
from services.cli.main import main
from services.loadtest.arrivals import Bounds, ClosedLoop
from services.loadtest.backends import Caller
from services.loadtest.conditions import CacheState, StatedConditions
from services.loadtest.lifecycle import Measured, Run, Screen
from services.loadtest.live import Live
from services.loadtest.openai_backend import OpenAiBackend
from services.loadtest.reporting.report import write_report
from services.loadtest.result import MAIN_PERCENTILES, METRICS
from services.loadtest.results_folder import read_conditions
from services.loadtest.run_plan import CacheStart, Priming, RunPlan, TenantPlan
from services.loadtest.targets import Answer, Call
from services.loadtest.upper_bound import PrefixLedger
from services.loadtest.workloads import WorkloadKind, WorkloadSpec
from tests.support.tokenizer_folder import write_tokenizer_folder

SPEC = WorkloadSpec(WorkloadKind.CONVERSATION, num_prefixes=1, prefix_len=32, suffix_len=8, output_len=3, turns=2)


class Api:
    """Answers each prompt with as many tokens as asked for."""

    def __init__(self, has_tokenizer: bool) -> None:
        self.app = web.Application()
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_post("/v1/completions", self.completions)
        if has_tokenizer:
            self.app.router.add_post("/tokenize", self.tokenize)
            self.app.router.add_post("/detokenize", self.detokenize)
        self.ledger = PrefixLedger(16)
        self.bodies: list[dict[str, object]] = []
        self.status, self.error = 200, ""
        self.usage_waits_for: asyncio.Event | None = None

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 512}]})

    async def tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"tokens": list((await request.json())["prompt"].encode())})

    async def detokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": bytes((await request.json())["tokens"]).decode()})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.status != 200:
            return web.Response(status=self.status, text=self.error)
        prompt = body["prompt"] if isinstance(body["prompt"], list) else list(body["prompt"].encode())
        cached = self.ledger.bound(pack(prompt)) // 16 * 16
        self.ledger.add(pack(prompt))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(body["max_tokens"]):
            await self._event(response, {"choices": [{"text": "x"}]})
        if self.usage_waits_for:
            await self.usage_waits_for.wait()
        usage = {"prompt_tokens": len(prompt), "completion_tokens": body["max_tokens"]}
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        await self._event(response, {"choices": [], "usage": usage | details})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(self, response: web.StreamResponse, event: object) -> None:
        await response.write(f"data: {json.dumps(event)}\n\n".encode())


@pytest.fixture
async def api() -> AsyncIterator[tuple[Api, str]]:
    made = Api(has_tokenizer=True)
    async with TestServer(made.app) as server:
        yield made, str(server.make_url("/v1"))


def plan(start: CacheStart = CacheStart.FRESH) -> RunPlan:
    tenant = TenantPlan("a", "a", "secret", 1.0, SPEC, ClosedLoop(1), Bounds(6, None), {})
    return RunPlan(
        (tenant,), 1, "", start, Priming.PREFIXES, 1, 5.0, 1.0, MAIN_PERCENTILES, {}, pool_tokens=0, settings={}
    )


async def measure(url: str, plan: RunPlan, form: str = "tokens", folder: Path | None = None) -> Measured:
    async def follow(live: Live) -> None:
        live.view()

    backend = OpenAiBackend(url, "", folder, form, 10.0)
    try:
        return await Run(plan, backend, None, Screen(lambda text: None, follow)).measure(asyncio.Event())
    finally:
        await backend.close()


@pytest.mark.parametrize("form", ["tokens", "text"])
async def test_a_run_counts_by_the_servers_own_tokenizer(api: tuple[Api, str], form: str) -> None:
    server, url = api
    measured = await measure(url, plan(), form)
    result = measured.result
    assert (result.completed, result.backend, result.model_id) == (6, "openai", "m")
    assert result.total_output_tokens == 18
    assert all(row.cached_tokens <= (row.cacheable_tokens or 0) for row in measured.rows)
    assert result.prefix_cache.hit_rate > 0.4
    assert not [each for each in result.warnings if "number of tokens" in each or "warm" in each]
    assert {type(body["prompt"]) for body in server.bodies} == {list if form == "tokens" else str}


async def test_a_repeated_seed_finds_nothing_of_the_run_before(api: tuple[Api, str]) -> None:
    _, url = api
    first, second = await measure(url, plan()), await measure(url, plan())
    assert [row.cached_tokens for row in first.rows] == [row.cached_tokens for row in second.rows]
    assert first.conditions.cache_state is CacheState.PRIMED
    kept = [await measure(url, plan(CacheStart.KEEP)) for _ in range(2)]
    assert kept[1].result.prefix_cache.hit_rate > second.result.prefix_cache.hit_rate


async def test_failures_are_told_by_status(api: tuple[Api, str]) -> None:
    server, url = api
    backend = OpenAiBackend(url, "", None, "tokens", 10.0)
    target = backend.target(Caller("a", "secret", ""), await backend.model())
    server.status = 429
    said = {"error": {"message": "too long: secret words", "type": "BadRequestError", "param": "prompt", "code": 400}}
    for server.error, kept in (
        (json.dumps(said), "BadRequestError 400"),
        ("busy: secret words", ""),
        ("[" * 9_000, ""),
    ):
        answer = Answer()
        await target.send(Call(pack([1, 2]), 3, "", "id"), answer)
        assert (answer.status, answer.error) == ("HTTP_429", kept)
        assert answer.words == server.error[:300]
    await target.close()
    await backend.close()


async def test_what_a_server_says_of_a_failure_is_written_nowhere(api: tuple[Api, str], tmp_path: Path) -> None:
    server, url = api
    server.status, server.error = 503, "secret words of a prompt"
    unwarmed = dataclasses.replace(plan(), num_warmups=0, priming=Priming.NONE)
    measured = await measure(url, unwarmed)
    assert {row.status for row in measured.rows} == {"HTTP_503"}
    write_run(tmp_path, measured, METRICS)
    write_report(tmp_path)
    assert not [each for each in tmp_path.iterdir() if "secret words" in each.read_text()]
    with pytest.raises(UnavailableError, match="secret words of a prompt"):
        await measure(url, plan())


async def test_an_answer_ends_with_its_last_token_whatever_comes_after(api: tuple[Api, str]) -> None:
    server, url = api
    server.usage_waits_for = asyncio.Event()
    backend = OpenAiBackend(url, "", None, "tokens", 10.0)
    target = backend.target(Caller("a", "secret", ""), await backend.model())
    answer = Answer()
    running = asyncio.create_task(target.send(Call(pack([1, 2]), 3, "", "id"), answer))
    while len(answer.arrivals_s) < 3:
        await asyncio.sleep(0.001)
    released_s = time.perf_counter()
    server.usage_waits_for.set()
    await running
    assert answer.ended_s is not None
    assert answer.arrivals_s[-1] - 0.1 <= answer.ended_s <= released_s
    await target.close()
    await backend.close()


async def test_without_a_tokenizer_of_the_server_a_folder_is_asked_for(tmp_path: Path) -> None:
    async with TestServer(Api(has_tokenizer=False).app) as server:
        url = str(server.make_url(""))
        with pytest.raises(PreconditionError, match="--tokenizer DIR"):
            await measure(url, plan())
        folder = write_tokenizer_folder(tmp_path / "tokenizer")
        measured = await measure(url, plan(), folder=folder)
        assert measured.result.completed == 6
        assert measured.conditions.model.tokenizer == str(folder)
        with pytest.raises(PreconditionError, match="no purge"):
            await measure(url, plan(CacheStart.PURGE), folder=folder)


async def test_its_runs_are_compared_where_the_server_is_described(
    api: tuple[Api, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, url = api
    described = StatedConditions(64, "", "")
    for name, stated in (("a", described), ("b", described), ("untold", None)):
        measured = await measure(url, dataclasses.replace(plan(), stated=stated))
        (tmp_path / name).mkdir()
        write_run(tmp_path / name, measured, METRICS)
    assert not read_conditions(tmp_path / "a").is_remote
    command = ["loadtest", "compare", str(tmp_path / "a")]
    assert main([*command, str(tmp_path / "b")]) == ExitCode.OK
    assert main([*command, str(tmp_path / "untold")]) == ExitCode.REFUSED
    assert "--server-max-num-seqs" in capsys.readouterr().err
