"""What is wrong with a config.json is said, with what would work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cache_store.errors import InvalidRequestError
from cache_store.kv_layout import KvDtype
from cache_store.planning.layers import layer_windows
from cache_store.planning.model_config import parse_config, read_config
from cache_store.planning.model_shape import Choices, parse_model
from cache_store.planning.weights import WeightSource
from tests.support import published_configs as published


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba2"}, "'mamba2' are not known to the planner; known are arcee, cohere, cohere2"),
        ({"model_type": None}, "has no model_type"),
        ({"hidden_size": None}, "has no hidden_size; add it"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it is at least 1"),
        ({"vocab_size": "many"}, "vocab_size is 'many'; it is a whole number"),
        ({"num_hidden_layers": True}, "it is a whole number"),
        ({"num_key_value_heads": 5}, "32 query heads are not divided by 5"),
        ({"layer_types": ["full_attention"]}, "32 layers, but 1 layer_types"),
        ({"layer_types": ["linear_attention"] * 32}, "'linear_attention' keep other state"),
        ({"torch_dtype": "float64"}, "'float64' are not planned for"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantised by 'bitsandbytes'.*--weights SIZE"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], message: str) -> None:
    content = {**published.LLAMA_3_8B, **changes}
    with pytest.raises(InvalidRequestError, match=message):
        parse_model("model", content, Choices())


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is no JSON"), ("[]", "holds no JSON object"), ("[" * 100_000, "is no JSON"), ("\ud800", "is no JSON")],
)
def test_files_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InvalidRequestError, match=message):
        read_config(tmp_path)


def test_a_folder_without_a_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="is not there; give a Hugging Face model folder"):
        read_config(tmp_path)


def test_a_file_by_any_name_will_do(tmp_path: Path) -> None:
    file = tmp_path / "oss.json"
    file.write_text(json.dumps(published.GPT_OSS_120B))
    assert read_config(file).model_type == "gpt_oss"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"use_sliding_window": False}, [0] * 4),
        ({"use_sliding_window": True, "max_window_layers": 3}, [0, 0, 0, 64]),
        ({"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"] * 2}, [64, 0, 64, 0]),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, [0] * 4),
    ],
)
def test_what_is_written_goes_before_the_family(changes: dict[str, object], expected: list[int]) -> None:
    content = {**published.QWEN_2_5_7B, "num_hidden_layers": 4, "sliding_window": 64, **changes}
    assert layer_windows(parse_config(content)) == tuple(expected)


def test_quantised_weights_take_their_bits() -> None:
    plain = parse_model("llama", published.LLAMA_3_8B, Choices())
    fp8 = {**published.LLAMA_3_8B, "quantization_config": {"quant_method": "fp8"}}
    gptq = {**published.LLAMA_3_8B, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
    whole, eight, four = (
        parse_model("llama", each, Choices()).weights.total_bytes for each in (published.LLAMA_3_8B, fp8, gptq)
    )
    table = 128256 * 4096 * 2  # of input embeddings, and again of the head: they stay as they are
    assert eight == pytest.approx((whole + 2 * table) / 2, rel=0.001)
    assert four < eight
    assert plain.dtype is KvDtype.BFLOAT16


def test_known_weights_are_divided_like_counted_ones() -> None:
    given = parse_model("oss", published.GPT_OSS_120B, Choices(weights_bytes=60 << 30)).weights
    assert (given.source, given.total_bytes) == (WeightSource.GIVEN, 60 << 30)
    assert given.expert_bytes > 0.9 * given.total_bytes
