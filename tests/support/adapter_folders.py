"""PEFT folders with LoRA adapters of random weights, and a model with an adapter merged into its weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from worker.torch_runner.loader import LoadedModel

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def write_folder(path: Path, tensors: Mapping[str, Tensor], **config: object) -> Path:
    """A folder as `save_pretrained` of PEFT writes it, with these tensors by module path and side."""
    path.mkdir(parents=True, exist_ok=True)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "somewhere/else",
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_dropout": 0.1,
        "modules_to_save": None,
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        **config,
    }
    (path / "adapter_config.json").write_text(json.dumps(settings))
    named = {f"base_model.model.{name}.weight": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, path / "adapter_model.safetensors")
    return path


def plain_tensors(rank: int = 4, path: str = "model.layers.0.self_attn.q_proj") -> dict[str, Tensor]:
    """One adapted layer of 6 inputs and 10 outputs."""
    generator = torch.Generator().manual_seed(rank)
    a, b = torch.randn(rank, 6, generator=generator), torch.randn(10, rank, generator=generator)
    return {f"{path}.lora_A": a, f"{path}.lora_B": b}


def write_adapter(
    path: Path,
    model: LoadedModel,
    seed: int,
    targets: Iterable[str] = (*ATTENTION, *MLP),
    rank: int = 4,
    alpha: float = 8,
    std: float = 0.15,
) -> Path:
    """An adapter for all layers of `model` that end in one of `targets`, strong enough to change greedy tokens."""
    generator = torch.Generator().manual_seed(seed)
    names = tuple(targets)
    tensors = {}
    for name, linear in model.module.named_modules():
        if isinstance(linear, nn.Linear) and name.endswith(tuple(f".{target}" for target in names)):
            tensors[f"{name}.lora_A"] = torch.randn(rank, linear.in_features, generator=generator) * std
            tensors[f"{name}.lora_B"] = torch.randn(linear.out_features, rank, generator=generator) * std
    assert tensors, "no layer is called so"
    return write_folder(path, tensors, r=rank, lora_alpha=alpha, target_modules=list(names))


def merged(model: LoadedModel, folder: Path) -> LoadedModel:
    """The model whose weights have become W + alpha / r * B A, by no code of the product."""
    from safetensors.torch import load_file

    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    module = copy.deepcopy(model.module)
    for name in (name for name in tensors if name.endswith(".lora_A.weight")):
        path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        a, b = tensors[name], tensors[name.replace(".lora_A.", ".lora_B.")]
        linear = module.get_submodule(path)
        assert isinstance(linear, nn.Linear)
        linear.weight.data += config["lora_alpha"] / config["r"] * (b @ a)
    return replace(model, module=module)
