"""The benchmark of the index works at small sizes, and what it times gives the right answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.bench.machine import NOT_RUN, ROOT


def test_it_measures_without_a_peer_and_says_so(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    sizes = ["--blocks", "4000", "--workers", "2,8", "--lengths", "8,512", "--tenants", "10,5"]
    options = [*sizes, "--rounds", "3", "--updates", "2", "--dynamo", str(tmp_path), "--json", str(result)]
    command = [sys.executable, "-m", "tests.bench.index", *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    document = json.loads(result.read_text())
    assert document["peers"]["dynamo"].startswith(NOT_RUN)
    assert NOT_RUN in run.stdout
    assert document["before"]["commit"]
    figures = document["figures"]
    cases = figures["lookups, 8 workers"]["cases"]
    assert {case["kind"] for case in cases} == {"PING", "script", "copy", "HMGET per block"}
    assert all(case["wall_us"]["0.5"] > 0 for case in cases)
    assert all(case["server_us"] > 0 for case in cases if case["kind"] in ("script", "HMGET per block"))
    redis, copy = figures["changes"]["redis"], figures["changes"]["copy"]
    assert (redis["drop"]["num_keys"], redis["drop"]["num_found"]) == (50, 50)
    assert (redis["purge"]["num_keys"], redis["purge"]["num_found"]) == (35, 35)
    for removal in (redis["drop"], redis["purge"]):
        assert (removal["num_left"], removal["num_lost"]) == (0, 0)
        assert removal["freed_bytes"] > 0
    assert copy["num_gone"] == 50 * 10 + 35 * 10
