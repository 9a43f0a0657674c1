"""The script for machines with a GPU goes through on a machine without one, interpreted; on its own it says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.gpu.check import NO_GPU, main


def test_it_goes_through_interpreted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings = tmp_path / "findings.json"
    assert main(["--interpret", "--json", str(findings)]) == 0, capsys.readouterr().out
    lines = json.loads(findings.read_text())["lines"]
    assert {line["section"] for line in lines} == {
        "kernels",
        "fixed order",
        "models",
        "limits",
        "memory",
        "recording",
        "decode",
        "prefill",
        "swap",
    }
    assert "0 wrong" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == NO_GPU
    assert "sees no CUDA device" in capsys.readouterr().out
