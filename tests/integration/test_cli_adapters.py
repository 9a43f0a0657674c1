"""`stemcache up --adapter` and `stemcache adapters` as a user types them, over restarts of a worker and of it all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.cli.exit_codes import ExitCode
from tests.support.adapter_folders import plain_tensors, write_folder
from tests.support.running_up import RunningUp, begin_up, run_stemcache, start_up, wait_until

pytestmark = pytest.mark.slow

PROMPT = ",".join(str(number % 97) for number in range(100))


def adapter(tmp_path: Path, name: str, alpha: float) -> Path:
    return write_folder(tmp_path / name, plain_tensors(), lora_alpha=alpha)


def answer(up: RunningUp, key: str, *flags: str) -> tuple[list[int], int]:
    result = up.run("generate", "--key", key, "--token-ids", PROMPT, "--max-tokens", "8", "--json", *flags)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    return document["completions"][0]["token_ids"], document["usage"]["cached_tokens"]


def served_by(up: RunningUp) -> dict[str, list[str]]:
    """States of each adapter on the workers."""
    result = up.run("adapters", "list", "--json")
    assert result.returncode == 0, result.stderr
    return {each["name"]: [worker["state"] for worker in each["workers"]] for each in json.loads(result.stdout)}


def test_adapters_are_loaded_replaced_and_there_again_after_restarts(tmp_path: Path) -> None:
    a, b = adapter(tmp_path, "a", 1), adapter(tmp_path, "b", 2)
    up = start_up(tmp_path / "data", "--runner", "digest", "--workers", "1", "--adapter", f"mine={a}")
    try:
        assert "adapter mine is loaded" in up.output()
        up.run("tenants", "create", "acme")
        key = up.run("tenants", "keys", "create", "acme").stdout.strip()
        base, first = answer(up, key), answer(up, key, "--model", "mine")
        assert first[0] != base[0]
        assert first[1] == 0
        loaded = up.run("adapters", "load", "mine", str(b), "--tenant", "acme")
        assert loaded.returncode == 0, loaded.stderr
        second = answer(up, key, "--model", "mine")
        assert second[0] not in (base[0], first[0])
        assert second[1] == 0
        refused = up.run("adapters", "load", "mine", str(tmp_path))
        assert refused.returncode == ExitCode.REFUSED
        assert "has no adapter_config.json" in refused.stderr
        up.child("WorkerActor").kill()
        wait_until(lambda: served_by(up) == {"mine": ["served"]}, 90)
        assert answer(up, key, "--model", "mine")[0] == second[0]
    finally:
        assert up.stop() == 0, up.output()
    again = start_up(tmp_path / "data", "--runner", "digest", "--workers", "1")
    try:
        wait_until(lambda: served_by(again) == {"mine": ["served"]})
        assert answer(again, key, "--model", "mine")[0] == second[0]
        assert again.run("adapters", "unload", "mine").returncode == 0
        assert served_by(again) == {}
    finally:
        assert again.stop() == 0, again.output()


def test_a_bad_folder_or_tenant_keeps_the_system_from_starting(tmp_path: Path) -> None:
    result = run_stemcache("up", "--data-dir", str(tmp_path / "a"), "--runner", "digest", "--adapter", "mine=/nowhere")
    assert result.returncode == ExitCode.REFUSED
    assert "/nowhere is no folder" in result.stderr
    folder = adapter(tmp_path, "mine", 1)
    up = begin_up(tmp_path / "data", "--runner", "digest", "--workers", "1", "--adapter", f"mine@nobody={folder}")
    assert up.process.wait(150) == ExitCode.REFUSED, up.output()
    assert "no tenant named 'nobody'" in up.output()
