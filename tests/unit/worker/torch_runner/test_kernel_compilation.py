"""The Triton kernels compile for GPUs that are not there, by the product's own launches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


def compile_kernels(cache: Path, *arguments: str) -> str:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache), "PYTHONPATH": f"{ROOT}:proto"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.compile_kernels", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kernels_of_real_models_compile_for_hopper(tmp_path: Path) -> None:
    output = compile_kernels(tmp_path, "--quick", "--target", "90")
    for name in ("llama 8B bf16", "llama 8B fp8", "gpt-oss bf16", "latent bf16", "4096 inputs bf16"):
        assert name in output


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["80", "89", "90", "100"])
def test_the_whole_grid_compiles(tmp_path: Path, target: str) -> None:
    assert "71/1 x 256" in compile_kernels(tmp_path, "--target", target)
