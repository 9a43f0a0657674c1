"""A model folder is refused with the name of what is wrong, before anything is loaded from it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_store.errors import InvalidRequestError
from worker.model_files.folder import check_folder


def safetensors(num_floats: int) -> bytes:
    entry = {"weight": {"dtype": "F32", "shape": [num_floats], "data_offsets": [0, 4 * num_floats]}}
    header = json.dumps(entry).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4 * num_floats)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(safetensors(3))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


@pytest.fixture
def sharded(folder: Path) -> Path:
    (folder / "model.safetensors").unlink()
    names = ["model-1-of-2.safetensors", "model-2-of-2.safetensors"]
    for name in names:
        (folder / name).write_bytes(safetensors(3))
    weight_map = {"a": names[0], "b": names[1], "c": names[1]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_a_whole_folder_is_described(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (folder / "chat_template.jinja").write_text("")
    checked = check_folder(folder)
    assert checked.path == folder.resolve()
    assert checked.config["model_type"] == "llama"
    assert checked.generation_config == {"eos_token_id": [1, 2]}
    assert [file.name for file in checked.weight_files] == ["model.safetensors"]
    assert [file.name for file in checked.tokenizer_files] == ["chat_template.jinja", "tokenizer.json"]


def test_all_shards_of_the_index_are_found(sharded: Path) -> None:
    assert [file.name for file in check_folder(sharded).weight_files] == [
        "model-1-of-2.safetensors",
        "model-2-of-2.safetensors",
    ]


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (remove("config.json"), "no config.json"),
    "config is no JSON": (write("config.json", b"{"), "is no JSON"),
    "config is no text": (write("config.json", b"\xff\xfe\x00"), "is no JSON"),
    "config is a list": (write("config.json", b"[]"), "no JSON object"),
    "no weights": (remove("model.safetensors"), "has no weights"),
    "pickled weights": (only_pickled, "never loaded"),
    "no tokenizer": (remove("tokenizer.json"), "has no tokenizer"),
    "empty weights": (write("model.safetensors", b""), "no safetensors file"),
    "LFS pointer": (write("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"), "no safetensors file"),
    "weights cut off": (write("model.safetensors", safetensors(3)[:-1]), "header promises"),
    "header cut off": (write("model.safetensors", safetensors(3)[:20]), "no safetensors file"),
}


@pytest.mark.parametrize(("spoil", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_named(folder: Path, spoil: Callable[[Path], None], said: str) -> None:
    spoil(folder)
    with pytest.raises(InvalidRequestError, match=said) as caught:
        check_folder(folder)
    assert caught.value.field == "model"
    assert str(folder.resolve()) in str(caught.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="is no folder"):
        check_folder(tmp_path / "absent")


def test_a_file_is_no_folder(folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="is no folder"):
        check_folder(folder / "config.json")


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-2-of-2.safetensors").unlink()
    with pytest.raises(InvalidRequestError, match=r"lacks 1 of 2 shards .* first model-2-of-2"):
        check_folder(sharded)


def test_an_index_that_leaves_the_folder_is_refused(sharded: Path) -> None:
    content = json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}})
    (sharded / "model.safetensors.index.json").write_text(content)
    with pytest.raises(InvalidRequestError, match="outside of the folder"):
        check_folder(sharded)


def test_an_index_without_a_map_is_refused(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(InvalidRequestError, match="no weight_map"):
        check_folder(sharded)


def test_an_unreadable_file_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()  # unreadable also for root
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        check_folder(folder)
