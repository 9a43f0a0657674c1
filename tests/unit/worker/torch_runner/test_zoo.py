"""Architectures through every course of their blocks: computed, found, preempted, on the host, on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.proof.zoo import PROMPTS, Courses
from tests.support.reference import generate
from tests.support.zoo import FAMILIES, zoo_model
from worker.torch_runner.loader import load_model

COMMON = (
    *("llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", "phi3", "gpt2", "gpt_bigcode", "mistral", "gemma", "gemma2"),
    *("gemma3_text", "gpt_oss", "deepseek_v2", "deepseek_v3", "olmo3", "granite", "starcoder2", "cohere2", "smollm3"),
    *("glm4", "nanochat"),
)
"""Of every kind of attention at least one; the others are proven by `make proof`."""


def check(name: str, folder: Path, num_new: int) -> list[tuple[str, Sequence[str]]]:
    """What went wrong."""
    model = load_model(zoo_model(name, folder), cache_dir=folder / "cache")
    expected = [generate(model, prompt, num_new) for prompt in PROMPTS]
    courses = Courses(model, expected, folder / "disk").run()
    assert [course.name for course in courses] == ["cold", "warm", "preempted", "host", "disk"]
    return [(course.name, course.problems) for course in courses if course.problems]


@pytest.mark.parametrize("name", COMMON)
def test_whatever_its_blocks_went_through_the_tokens_are_those_of_generate(name: str, tmp_path: Path) -> None:
    assert check(name, tmp_path, 20) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(set(FAMILIES) - set(COMMON)))
def test_so_are_those_of_every_other_architecture(name: str, tmp_path: Path) -> None:
    assert check(name, tmp_path, 24) == []
