"""`stemcache up` and everything that is typed against it, with workers that need no model."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.client import (
    AsyncStemcacheClient,
    FinishReason,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Sampling,
    StemcacheClient,
    Tokens,
)
from tests.support.running_up import START_TIMEOUT_S, RunningUp, begin_up, run_stemcache, start_up, wait_until
from tests.support.tokenizer_folder import write_tokenizer_folder

pytestmark = pytest.mark.slow

PROMPT = ",".join(str(number % 97) for number in range(100))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    running = start_up(tmp_path_factory.mktemp("up") / "data", "--runner", "digest")
    yield running
    assert running.stop() == 0, running.output()
    assert running.left_over() == []


@pytest.fixture(scope="module")
def key(up: RunningUp) -> str:
    assert up.run("tenants", "create", "acme").returncode == 0
    made = up.run("tenants", "keys", "create", "acme")
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def _generate(up: RunningUp, key: str, *flags: str) -> dict[str, object]:
    result = up.run("generate", "--key", key, "--token-ids", PROMPT, "--max-tokens", "8", "--json", *flags)
    assert result.returncode == 0, result.stderr
    document: dict[str, object] = json.loads(result.stdout)
    return document


def test_it_says_what_it_did(up: RunningUp) -> None:
    said = up.output()
    for word in ("bytes of KV per token", "blocks of", "at most", str(up.state()["address"]), "tenants create demo"):
        assert word in said


def test_generate_hits_the_cache_of_the_same_tenant_only(up: RunningUp, key: str) -> None:
    cold, warm = _generate(up, key), _generate(up, key)
    assert cold["usage"]["cached_tokens"] == 0  # type: ignore[index]
    assert warm["usage"]["cached_tokens"] > 0  # type: ignore[index]
    assert warm["completions"] == cold["completions"]
    up.run("tenants", "create", "globex")
    other = up.run("tenants", "keys", "create", "globex").stdout.strip()
    foreign = _generate(up, other)
    assert foreign["usage"]["cached_tokens"] == 0  # type: ignore[index]
    assert foreign["completions"] == cold["completions"]


def test_generate_tells_the_operator_why_it_went_where_it_went(up: RunningUp, key: str) -> None:
    flags = ["--token-ids", " ".join(map(str, range(700, 764))), "--max-tokens", "4", "--ignore-eos"]
    told = []
    for further in ([], [], ["--operator-token-file", str(up.data_dir / "admin.token")]):
        found = up.run("generate", "--key", key, "-v", *flags, *further)
        assert found.returncode == 0, found.stderr
        told.append(found.stderr.splitlines())
    cold, warm, explained = told
    assert cold[0].startswith("tokens  64 prompt: 0 cached, 64 computed; 4 made;")
    assert warm[0].startswith("tokens  64 prompt: 63 cached (device 63), 1 computed; 4 made;")
    assert warm[2] == cold[2], "the same worker"
    assert len(warm) == 3, "terms are the operator's"
    worker = warm[2].split()[-1]
    assert any(line.strip().startswith(f"{worker}: 63 tokens there; cost") for line in explained[3:])


def test_rotation_makes_what_was_cached_unreachable(up: RunningUp, key: str) -> None:
    _generate(up, key)
    assert _generate(up, key)["usage"]["cached_tokens"] > 0  # type: ignore[index]
    assert up.run("tenants", "rotate", "acme").returncode == 0
    assert _generate(up, key)["usage"]["cached_tokens"] == 0  # type: ignore[index]


async def test_a_running_request_is_cancelled_by_its_id(up: RunningUp, key: str) -> None:
    address = str(up.state()["address"])
    request = GenerationRequest(Tokens((1, 2, 3)), Sampling(max_tokens=8000, ignore_eos=True), request_id="long")
    async with AsyncStemcacheClient(address, key) as client:
        events = client.stream(request)
        assert isinstance(await anext(events), GenerationStarted)
        assert await client.cancel("long")
        rest = [event async for event in events]
        assert not await client.cancel("long")
    assert isinstance(rest[-1], GenerationFinished)
    assert rest[-1].samples[0].finish_reason is FinishReason.CANCELLED


def test_another_tenant_cannot_cancel_it(up: RunningUp, key: str) -> None:
    up.run("tenants", "create", "stranger")
    other = up.run("tenants", "keys", "create", "stranger").stdout.strip()
    address = str(up.state()["address"])
    request = GenerationRequest(Tokens((1, 2, 3)), Sampling(max_tokens=8000, ignore_eos=True), request_id="mine")
    with StemcacheClient(address, key) as client, StemcacheClient(address, other) as stranger:
        events = client.stream(request)
        next(events)
        assert not stranger.cancel("mine")
        assert client.cancel("mine")
        list(events)


def test_status_shows_both_workers(up: RunningUp) -> None:
    result = up.run("status", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    status = json.loads(result.stdout)
    assert [each["worker_id"] for each in status["workers"]] == ["worker-0", "worker-1"]
    assert status["degraded"] is False


def test_top_and_the_console_show_it_live(up: RunningUp) -> None:
    shown = up.run("top", "--once", "--json")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert [each["worker_id"] for each in json.loads(shown.stdout)["workers"]] == ["worker-0", "worker-1"]
    (line,) = [each for each in up.run("status").stdout.splitlines() if each.startswith("console: ")]
    url = line.removeprefix("console: ")
    assert url in up.output()
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert b"Stemcache console" in answer.read()


def test_a_quota_reaches_both_workers_and_the_metrics(up: RunningUp) -> None:
    assert up.run("tenants", "create", "initech", "--min", "12.5%").returncode == 0
    assert up.run("tenants", "quota", "initech", "--min", "25%").returncode == 0

    def is_told() -> bool:
        status = json.loads(up.run("status", "--json").stdout)
        workers = status["workers"]
        uses = [use for worker in workers for use in worker["tenants"] if use["tenant"] == "initech"]
        return [use["guaranteed_blocks"] * 4 for use in uses] == [worker["total_blocks"] for worker in workers]

    wait_until(is_told)
    assert 'stemcache_tenant_guaranteed_blocks{tenant="initech",worker="worker-0"}' in up.run("metrics").stdout


def test_a_revoked_key_is_refused(up: RunningUp) -> None:
    up.run("tenants", "create", "brief")
    made = json.loads(up.run("tenants", "keys", "create", "brief", "--json").stdout)
    _generate(up, made["secret"])
    assert up.run("tenants", "keys", "revoke", made["key"]["key_id"]).returncode == 0
    result = up.run("generate", "--key", made["secret"], "--token-ids", "1,2")
    assert result.returncode == 1
    assert result.stderr.startswith("stemcache: UNAUTHENTICATED: ")


def test_a_tenant_is_deleted(up: RunningUp) -> None:
    up.run("tenants", "create", "gone")
    assert up.run("tenants", "delete", "gone", "--yes").returncode == 0
    assert "gone" not in up.run("tenants", "list").stdout


def test_tenants_are_exported_and_imported(up: RunningUp, tmp_path: Path) -> None:
    document = tmp_path / "tenants.json"
    up.run("tenants", "create", "kept")
    assert up.run("tenants", "export", str(document)).returncode == 0
    up.run("tenants", "create", "later")
    result = up.run("tenants", "import", str(document))
    assert result.returncode == 0, result.stderr
    assert "kept" in up.run("tenants", "list").stdout


def test_a_second_system_on_the_same_folder_is_refused(up: RunningUp) -> None:
    result = up.run("up", "--runner", "digest")
    assert result.returncode == 1
    assert f"process {up.process.pid}" in result.stderr
    assert result.stderr.count("\n") == 1


def test_secrets_are_on_no_command_line(up: RunningUp, key: str) -> None:
    token = (up.data_dir / "admin.token").read_text().strip()
    master = (up.data_dir / "master.key").read_text().strip()
    for process in up.note_children().values():
        if process.is_running():
            words = " ".join(process.cmdline())
            assert token not in words
            assert master not in words


def test_files_of_the_folder_are_private(up: RunningUp) -> None:
    for path in up.data_dir.iterdir():
        assert path.stat().st_mode & 0o077 == 0 or path.name == "up.lock", path


def test_a_killed_router_comes_back(up: RunningUp, key: str) -> None:
    router = up.child("services.router")
    router.kill()
    wait_until(lambda: up.output().count("router: ready") > 1)
    assert _generate(up, key)["usage"]["prompt_tokens"] == 100  # type: ignore[index]


def test_a_killed_valkey_comes_back_with_its_tenants(up: RunningUp, key: str) -> None:
    up.child("valkey-server").kill()
    wait_until(lambda: "valkey: ready" in up.output().partition("valkey: paused")[2])
    assert _generate(up, key)["usage"]["prompt_tokens"] == 100  # type: ignore[index]
    wait_until(lambda: up.run("status").returncode == 0)
    assert "acme" in up.run("tenants", "list").stdout


def test_a_killed_ray_comes_back_with_its_workers(up: RunningUp, key: str) -> None:
    raylet = up.child("raylet/raylet")
    raylet.kill()
    wait_until(lambda: up.output().count("worker-1: ready") > 1, timeout_s=90.0)
    assert _generate(up, key)["usage"]["prompt_tokens"] == 100  # type: ignore[index]


def test_a_request_survives_orderly_stop_and_tenants_survive_a_restart(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    first = start_up(data_dir, "--runner", "digest", "--workers", "1")
    try:
        first.run("tenants", "create", "acme")
        key = first.run("tenants", "keys", "create", "acme").stdout.strip()
        with StemcacheClient(str(first.state()["address"]), key) as client:
            stream = client.stream(GenerationRequest(Tokens((1, 2, 3)), Sampling(max_tokens=2000, ignore_eos=True)))
            next(stream)
            first.process.send_signal(signal.SIGTERM)
            assert len(list(stream)) > 1  # it ends in order: no error
        assert first.stop() == 0, first.output()
        assert first.left_over() == []
    finally:
        first.stop()
    assert run_stemcache("status", "--data-dir", str(data_dir)).returncode == 1
    second = start_up(data_dir, "--runner", "digest", "--workers", "1")
    try:
        assert _generate(second, key)["usage"]["cached_tokens"] == 0  # type: ignore[index]
    finally:
        second.stop()
    assert second.left_over() == []


def test_blocks_go_down_to_the_disk_and_none_outlives_the_system(tmp_path: Path) -> None:
    sizes = ("--host-cache", "384KiB", "--disk-cache", "1MiB", "--disk-folder", str(tmp_path / "blocks"))
    running = start_up(tmp_path / "data", "--runner", "digest", "--workers", "1", "--eviction-policy", "lru", *sizes)
    prompts = [Tokens(tuple(range(start, start + 8_000))) for start in range(14)]
    try:
        assert "384.0 KiB of memory, 1.0 MiB on disk" in running.output()
        running.run("tenants", "create", "acme")
        key = running.run("tenants", "keys", "create", "acme").stdout.strip()
        with StemcacheClient(str(running.state()["address"]), key) as client:
            for prompt in prompts:
                client.generate(GenerationRequest(prompt, Sampling(max_tokens=1)))
            wait_until(lambda: client.cache.lookup(prompts[0]).matched_by_tier.disk_tokens > 0)
        wait_until(lambda: all(_blocks_below(running)))
        assert list((tmp_path / "blocks" / "worker-0").glob("*/*"))
        assert running.stop() == 0, running.output()
    finally:
        running.stop()
    assert [path.name for path in (tmp_path / "blocks" / "worker-0").rglob("*")] == ["lock"]
    assert running.left_over() == []


def _blocks_below(running: RunningUp) -> tuple[int, int]:
    """What the status says of the only tenant's blocks in the host's memory and on disk."""
    (worker,) = json.loads(running.run("status", "--json").stdout)["workers"]
    (use,) = worker["tenants"]
    return use["host_blocks"], use["disk_blocks"]


def test_ctrl_c_during_a_start_leaves_nothing(tmp_path: Path) -> None:
    running = begin_up(tmp_path / "data", "--runner", "digest")
    wait_until(lambda: "worker-0: starting" in running.output(), timeout_s=60.0)
    assert running.stop() == 1
    assert "stopped by SIGINT before everything had started" in running.output()
    assert "Traceback" not in running.output()
    assert running.left_over() == []


def test_a_sigterm_that_reaches_ray_too_stops_everything(tmp_path: Path) -> None:
    running = start_up(tmp_path / "data", "--runner", "digest", "--workers", "2")
    os.killpg(running.process.pid, signal.SIGTERM)  # as a service manager does
    assert running.stop(signal.SIGTERM) == 0, running.output()
    assert running.left_over() == []


def test_a_model_that_is_not_served_is_refused_in_one_line(tmp_path: Path) -> None:
    model = write_tokenizer_folder(tmp_path / "model")
    (model / "config.json").write_text('{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}')
    header = b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    running = begin_up(tmp_path / "data", "--model", str(model), "--workers", "1")
    assert running.process.wait(START_TIMEOUT_S) == 1
    last = running.output().strip().splitlines()[-1]
    assert last.startswith("stemcache: error: worker-0 did not start: models of type 'mamba' are not served")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--host-cache", "900TiB"), "too little memory for --host-cache"),
        (("--host-cache", "1MiB", "--disk-cache", "900TiB"), "too little room for --disk-cache"),
        (("--disk-cache", "1MiB"), "add --host-cache"),
    ],
)
def test_caches_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    data_dir = ("--data-dir", str(tmp_path / "data"), "--port", "0", "--admin-port", "0")
    refused = run_stemcache("up", "--runner", "digest", *data_dir, *flags)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert words in refused.stderr


def test_nothing_outlives_a_killed_system(tmp_path: Path) -> None:
    running = start_up(tmp_path / "data", "--runner", "digest", "--workers", "1")
    running.note_children()
    running.process.kill()
    running.process.wait()
    wait_until(lambda: running.left_over() == [])
