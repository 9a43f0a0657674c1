"""Adapters as the PEFT library itself saves and computes them: its folders are read, its logits are ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from cache_store.adapter_files import AdapterContent, read_adapter
from tests.support.runner_drivers import tokens
from worker.step_plan import Row, SequenceId
from worker.torch_runner.adapters import AdapterSet
from worker.torch_runner.hook import HOOK_NAME
from worker.torch_runner.loader import LoadedModel

CASES: dict[str, dict[str, object]] = {
    "list": {"target_modules": ["q_proj", "v_proj"]},
    "regex": {"target_modules": r".*\.layers\.[12]\.(self_attn\.k|mlp\.down)_proj"},
    "all-linear": {"target_modules": "all-linear"},
    "excluded": {"target_modules": "all-linear", "exclude_modules": ["o_proj"]},
    "layers": {"target_modules": ["q_proj"], "layers_to_transform": [1, 3]},
    "patterns": {
        "target_modules": ["q_proj", "up_proj"],
        "rank_pattern": {"up_proj": 6, r"layers\.[01]\.self_attn\.q_proj": 2},
        "alpha_pattern": {"q_proj": 3},
    },
    "rslora": {"target_modules": ["q_proj", "o_proj"], "use_rslora": True},
    "gaussian": {"target_modules": ["gate_proj"], "init_lora_weights": "gaussian"},
}


def peft_adapter(model: LoadedModel, folder: Path, **config: object) -> Callable[[Tensor], Tensor]:
    """Has PEFT make and save an adapter of random weights; what it computes with it."""
    module = copy.deepcopy(model.module)
    module.set_attn_implementation("eager")
    adapted = get_peft_model(module, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, **config))
    generator = torch.Generator().manual_seed(5)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.2, generator=generator)
    adapted.save_pretrained(folder)
    adapted.eval()
    return lambda prompt: adapted(input_ids=prompt, use_cache=False).logits


def own_logits(model: LoadedModel, content: AdapterContent, prompt: Tensor) -> Tensor:
    """The adapter in a batch, beside rows without one."""
    adapters = AdapterSet(model.module)
    adapters.attach(adapters.prepare(content))
    model.module.set_attn_implementation("eager")
    row = Row(SequenceId(1), tuple(prompt[0].tolist()), 0, (), (), content.digest)
    step = adapters.of_step((row,))
    assert step is not None
    try:
        with step.applied():
            return model.module(input_ids=prompt, use_cache=False).logits
    finally:
        model.module.set_attn_implementation(HOOK_NAME)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_folders_of_peft_give_its_logits(
    tiny: Callable[[str], LoadedModel], name: str, case: str, tmp_path: Path
) -> None:
    model = tiny(name)
    with torch.inference_mode(mode=False):
        theirs = peft_adapter(model, tmp_path, **CASES[case])
    prompt = torch.tensor([tokens(19, 4)])
    content = read_adapter(tmp_path)
    ours = own_logits(model, content, prompt)
    assert torch.allclose(ours, theirs(prompt), atol=1e-4, rtol=0)
