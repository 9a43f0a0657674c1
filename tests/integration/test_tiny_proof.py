"""The proof of `python -m tests.proof` for models that are small enough for every run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.proof.cases import TINY_MODELS, tiny_case
from tests.proof.compare import compare
from tests.proof.memory import check_memory
from tests.proof.reference import Reference
from worker.torch_runner.loader import load_model


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY_MODELS)
def test_all_caches_give_the_tokens_of_generate(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    case = tiny_case(name, tmp_path)
    model = load_model(case.folder, cache_dir=tmp_path / "cache")
    lines = compare(case, Reference(case.folder, "eager"), model, threads=1)
    assert [(line.cache, line.problems) for line in lines if line.problems] == []
    assert sum(line.cached_tokens for line in lines) > 0


def test_bytes_of_the_tensors_are_those_of_the_formula(tmp_path: Path) -> None:
    case = tiny_case("llama", tmp_path)
    _, problems = check_memory(case, load_model(case.folder, cache_dir=tmp_path / "cache"))
    assert problems == []
