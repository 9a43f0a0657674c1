"""What an adapter_config.json asks for: the rules of PEFT, and what is refused by name and reason."""

from __future__ import annotations

import math

import pytest

from cache_store.errors import InvalidRequestError
from cache_store.lora_config import LoraConfig, read_lora_config

PLAIN = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
Q, MLP = "model.layers.3.self_attn.q_proj", "model.layers.12.mlp.up_proj"


def read(**changes: object) -> LoraConfig:
    return read_lora_config({**PLAIN, **changes}, "adapter_config.json")


def test_names_match_whole_ends_of_paths() -> None:
    config = read(target_modules=["q_proj", "mlp.up_proj"])
    assert config.adapts(Q)
    assert config.adapts(MLP)
    assert config.adapts("q_proj")
    assert not config.adapts("model.layers.3.self_attn.k_proj")
    assert not config.adapts("model.layers.3.self_attn.eq_proj")


def test_a_string_is_a_regular_expression_over_the_whole_path() -> None:
    config = read(target_modules=r".*\.layers\.[0-4]\..*q_proj")
    assert config.adapts(Q)
    assert not config.adapts("model.layers.5.self_attn.q_proj")
    assert not config.adapts(Q + ".more")


def test_all_linear_takes_everything_but_what_is_excluded() -> None:
    config = read(target_modules="all-linear", exclude_modules=["up_proj"])
    assert config.adapts(Q)
    assert not config.adapts(MLP)


def test_layers_can_be_picked_by_number() -> None:
    config = read(layers_to_transform=[3, 4])
    assert config.adapts(Q)
    assert not config.adapts("model.layers.5.self_attn.q_proj")
    assert read(layers_to_transform=3).adapts(Q)


def test_patterns_change_rank_and_scale_of_what_they_match() -> None:
    config = read(rank_pattern={"q_proj": 4, r"layers\.3\..*": 2}, alpha_pattern={"layers.3.self_attn.q_proj": 6})
    assert config.rank_of(Q) == 4, "the first that matches"
    assert config.scale_of(Q) == 6 / 4
    assert config.rank_of(MLP) == 8
    assert config.scale_of(MLP) == 16 / 8


def test_rank_stabilised_lora_divides_by_the_root() -> None:
    assert read(use_rslora=True).scale_of(Q) == 16 / math.sqrt(8)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'; served is LORA"),
        ({"use_dora": True}, "use_dora.*DoRA also changes the magnitude"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save.*replaces whole modules"),
        ({"bias": "all"}, "bias.*only 'none' is served"),
        ({"lora_bias": True}, "lora_bias"),
        ({"fan_in_fan_out": True}, "Conv1D"),
        ({"trainable_token_indices": [1]}, "changes embeddings"),
        ({"target_parameters": ["experts.w1"]}, "experts"),
        ({"layer_replication": [[0, 2]]}, "adds layers"),
        ({"init_lora_weights": "pissa"}, "began from changed weights"),
        ({"alora_invocation_tokens": [5]}, "tokens that came before"),
        ({"a_field_of_next_year": 3}, "a_field_of_next_year = '3'.*not known"),
        ({"r": 0}, "a rank is a whole number"),
        ({"r": True}, "a rank is a whole number"),
        ({"lora_alpha": "many"}, "it is a number"),
        ({"lora_alpha": math.inf}, "it is a number"),
        ({"target_modules": None}, "a list of names or a regular expression"),
        ({"target_modules": []}, "a list of names or a regular expression"),
        ({"target_modules": "("}, "no regular expression"),
        ({"rank_pattern": {"(": 3}}, "no regular expression"),
        ({"rank_pattern": [3]}, "no object"),
        ({"layers_to_transform": ["a"]}, "a list of layer numbers"),
    ],
)
def test_what_is_not_served_is_refused_by_name_and_reason(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as refused:
        read(**changes)
    assert refused.value.field == "folder"


def test_fields_that_change_nothing_are_taken_whatever_they_are() -> None:
    read(lora_dropout=0.3, base_model_name_or_path="x/y", inference_mode=False, task_type="CAUSAL_LM", loftq_config={})
    read(init_lora_weights="gaussian", a_field_of_next_year=None, another=[])
