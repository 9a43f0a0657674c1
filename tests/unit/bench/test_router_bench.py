"""The benchmark of the router works at small sizes: all ways are asked, and each is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.machine import ROOT


@pytest.mark.alone
def test_it_measures_all_ways(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    options = ["--tokens", "64", "--calls", "3", "--rounds", "2", "--calls-per-round", "64", "--json", str(result)]
    none = str(tmp_path / "no-peer")  # those of `make bench-peers` may lie beside
    command = [sys.executable, "-m", "tests.bench.router", *options, "--sglang-router", none, "--smg", none]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    document = json.loads(result.read_text())
    assert len(document["figures"]["sides"]) == len(document["raw"]) == 3
    assert all(side["p50_ms"] > 0 for side in document["figures"]["sides"].values())
    for figures in document["raw"].values():
        assert len(figures["latency_s"]) == 3
        assert len(figures["loaded_s"]) == 2 * 64
        assert all(rate > 0 for rate in figures["rates"])
