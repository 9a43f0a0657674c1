"""Whatever transformers knows as a causal language model is served and proven, or refused by name and reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from cache_store.errors import InvalidRequestError
from tests.support.refusals import BY_CONFIG, BY_PROBE
from tests.support.tiny_models import write_tokenizer
from tests.support.zoo import FAMILIES, zoo_model
from worker.torch_runner.loader import load_model

UNTRIED = {
    *("camembert", "data2vec-text", "electra", "bert-generation", "roberta-prelayernorm", "roc_bert"),
    *("xlm-roberta-xl", "xmod"),  # as bert
    *("codegen", "cohere_compass_text", "dbrx", "gemma4_assistant", "gemma4_text", "gptj", "hrm_text"),
    *("lfm2", "lfm2_moe", "longcat_flash", "mimo_v2_flash"),
}
"""No tiny model was made of them: the probe decides when one is loaded."""


def test_every_causal_language_model_is_served_or_refused() -> None:
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    lists = (set(FAMILIES), set(BY_CONFIG), set(BY_PROBE), UNTRIED)
    assert set().union(*lists) == known
    assert sum(len(each) for each in lists) == len(known)


@pytest.mark.parametrize("name", BY_CONFIG)
def test_what_a_configuration_tells_is_refused_before_weights_are_read(tmp_path: Path, name: str) -> None:
    CONFIG_MAPPING[name]().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    save_file({"nothing": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidRequestError, match=BY_CONFIG[name]) as raised:
        load_model(tmp_path, cache_dir=tmp_path)
    assert f"models of type '{name}' are not served" in str(raised.value)


@pytest.mark.parametrize("name", BY_PROBE)
def test_what_only_the_probe_finds_is_refused(tmp_path: Path, name: str) -> None:
    folder = zoo_model(name, tmp_path)
    with pytest.raises(InvalidRequestError, match=BY_PROBE[name]):
        load_model(folder, cache_dir=tmp_path)


@pytest.mark.parametrize(("name", "window"), [("mistral", 24), ("gemma2", 24), ("llama", 0), ("deepseek_v2", 0)])
def test_windows_by_mask_and_cache_are_those_of_the_attention(tmp_path: Path, name: str, window: int) -> None:
    model = load_model(zoo_model(name, tmp_path), cache_dir=tmp_path)
    assert model.layers[0].window == window


def test_a_window_that_only_the_cache_keeps_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = zoo_model("llama", tmp_path)
    monkeypatch.setattr("worker.torch_runner.probe.cache_windows", lambda _model: {0: 0, 1: 24})
    with pytest.raises(InvalidRequestError, match=r"layer 1 reads all tokens by its attention.*24 tokens by transfor"):
        load_model(folder, cache_dir=tmp_path)
