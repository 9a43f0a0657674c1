"""The engine benchmark works on its own: small sizes, a tiny model, no peer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.architecture.test_imports import ROOT
from tests.support.tiny_models import tiny_model


def test_it_measures_without_peers_and_says_so(tmp_path: Path) -> None:
    model = tiny_model("llama", tmp_path)
    result = tmp_path / "result.json"
    options = ["--quick", "--repeats", "2", "--threads", "1", "--peers", "none", "--model", str(model)]
    run = subprocess.run(
        [sys.executable, "-m", "tests.bench.engine", *options, "--json", str(result)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    document = json.loads(result.read_text())
    figures, peers = document["figures"], document["peers"]
    assert set(peers) == {"vllm", "llama.cpp", "transformers"}
    assert all(why.startswith("not run") for why in peers.values())
    assert run.stdout.count("not run") > 3
    measures = [row["measure"] for row in figures["rows"]]
    words = ("cold TTFT, 96", "warm TTFT, 96", "decode", "cold", "warm", "scheduler", "paged attention", "paged waste")
    assert all(any(word in measure for measure in measures) for word in words)
    assert all(row["samples"]["stemcache"] for row in figures["rows"])
    assert document["before"]["load"]
    assert document["before"]["commit"]
    assert figures["sides"]["stemcache"]["threads"] == 1
    (batch, _) = (raw["answer"]["cached"] for raw in document["raw"] if raw["row"] == "batch")
    cold, warm = batch
    by_chance = 2  # leading tokens that random prompts of a small vocabulary have in common with earlier ones
    assert cold[0] <= by_chance, "nothing of a fresh prefix is there"
    assert cold[1:] == [64, 64], "requests at once compute what they share once"
    assert warm == [64, 64, 64]
