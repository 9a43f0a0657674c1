"""PEFT folders: what is read, what names it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cache_store.adapter_files import read_adapter
from cache_store.errors import InvalidRequestError
from tests.support.adapter_folders import plain_tensors, write_folder

Q = "model.layers.0.self_attn.q_proj"


def test_modules_tell_path_scale_and_shapes(tmp_path: Path) -> None:
    content = read_adapter(write_folder(tmp_path, plain_tensors()))
    (module,) = content.modules
    assert (module.path, module.scale, module.a.shape, module.b.shape) == (Q, 2.0, (4, 6), (10, 4))
    assert content.size_bytes == 4 * (4 * 6 + 10 * 4)
    raw = content.data[module.a.start : module.a.stop]
    assert torch.equal(torch.frombuffer(bytearray(raw), dtype=torch.float32).view(4, 6), plain_tensors()[f"{Q}.lora_A"])


def test_the_digest_is_of_what_changes_outputs_and_of_nothing_else(tmp_path: Path) -> None:
    first = read_adapter(write_folder(tmp_path / "a", plain_tensors()))
    same = [
        write_folder(tmp_path / "b", plain_tensors(), base_model_name_or_path="other", lora_dropout=0.5),
        write_folder(tmp_path / "c", dict(reversed(plain_tensors().items())), target_modules="all-linear"),
        write_folder(tmp_path / "d", plain_tensors(), lora_alpha=4, use_rslora=True),  # 4 / sqrt(4) = 8 / 4
    ]
    assert {read_adapter(folder).digest for folder in same} == {first.digest}
    assert len(first.digest) == 32


def test_every_other_content_has_another_digest(tmp_path: Path) -> None:
    weights = plain_tensors()
    changed = {**weights, f"{Q}.lora_B": weights[f"{Q}.lora_B"] + 1e-6}
    swapped = {f"{Q}.lora_A": weights[f"{Q}.lora_B"].T, f"{Q}.lora_B": weights[f"{Q}.lora_A"].T}
    k = plain_tensors(path=Q.replace("q_proj", "k_proj"))
    folders = [
        write_folder(tmp_path / "a", weights),
        write_folder(tmp_path / "b", changed),
        write_folder(tmp_path / "c", swapped),
        write_folder(tmp_path / "d", weights, lora_alpha=9),
        write_folder(tmp_path / "e", k, target_modules=["k_proj"]),
        write_folder(tmp_path / "f", {**weights, **k}, target_modules=["q_proj", "k_proj"]),
        write_folder(tmp_path / "g", {name: tensor.bfloat16() for name, tensor in weights.items()}),
        write_folder(tmp_path / "h", {name: tensor.half() for name, tensor in weights.items()}),
    ]
    assert len({read_adapter(folder).digest for folder in folders}) == len(folders)


def refused(folder: Path, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as error:
        read_adapter(folder)
    assert error.value.field == "folder"


def test_folders_that_are_none_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "is no folder")
    refused(Path("adapters/a"), "a relative path")
    refused(tmp_path, "has no adapter_config.json")


def test_broken_files_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", plain_tensors())
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    for broken in (b"", b"version https://git-lfs", whole[:-1], whole[:40], b"\xff" * 64):
        weights.write_bytes(broken)
        refused(folder, "no whole safetensors file|cannot be")
    weights.unlink()
    refused(folder, "cannot be read: No such file")
    (folder / "adapter_model.bin").write_bytes(b"pickle")
    refused(folder, "pickled adapter_model.bin, which is never loaded")


def test_a_broken_configuration_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, plain_tensors())
    for text, reason in (("{", "is no JSON"), ("[]", "no JSON object"), ("[" * 10_000, "is no JSON")):
        (folder / "adapter_config.json").write_text(text)
        refused(folder, reason)


def test_headers_that_lie_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, plain_tensors())
    file = folder / "adapter_model.safetensors"
    name = f"base_model.model.{Q}.lora_A.weight"
    for entry in (
        {"dtype": "F32", "shape": [4, 6], "data_offsets": [0, 1 << 40]},
        {"dtype": "F32", "shape": [4, 6], "data_offsets": [-96, 0]},
        {"dtype": "F32", "shape": [4, 7], "data_offsets": [0, 96]},
        {"dtype": "F32", "shape": "4", "data_offsets": [0, 96]},
        {"dtype": "F32", "shape": [4, 6]},
        "nothing",
    ):
        header = json.dumps({name: entry}).encode()
        file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(96))
        refused(folder, "no whole safetensors file")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("model.embed_tokens.lora_embedding_A", "it adapts embeddings"),
        (f"{Q}.lora_magnitude_vector", "DoRA"),
        ("lm_head.modules_to_save", "replaces whole modules"),
        (f"{Q}.lora_C", "no lora_A or lora_B of a linear layer"),
    ],
)
def test_other_tensors_are_refused_by_reason(tmp_path: Path, name: str, reason: str) -> None:
    refused(write_folder(tmp_path, {**plain_tensors(), name: torch.zeros(4, 6)}), reason)


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    half = {f"{Q}.lora_A": torch.zeros(4, 6)}
    refused(write_folder(tmp_path / "a", half), "only one of lora_A and lora_B")
    refused(write_folder(tmp_path / "b", plain_tensors(), target_modules=["k_proj"]), "does not target")
    refused(write_folder(tmp_path / "c", plain_tensors(), r=8), "says rank 8")
    refused(write_folder(tmp_path / "d", plain_tensors(), rank_pattern={"q_proj": 2}), "says rank 2")
    refused(write_folder(tmp_path / "e", {}), "changes nothing")


def test_other_types_and_dimensions_are_refused(tmp_path: Path) -> None:
    refused(write_folder(tmp_path / "a", {f"{Q}.lora_A": torch.zeros(4, 6, dtype=torch.int8)}), "has type I8")
    refused(write_folder(tmp_path / "b", {f"{Q}.lora_A": torch.zeros(4, 6, 1)}), "has 3 dimensions")
