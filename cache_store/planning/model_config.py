"""Reads config.json of a model, with suspicion and with the defaults of its architecture. Keeps nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cache_store.errors import InvalidRequestError
from cache_store.planning.families import FAMILIES, WRAPPERS, Family

CONFIG_NAME = "config.json"
_MAX_CONFIG_BYTES = 16 << 20
_USUAL_DEFAULTS: Mapping[str, bool] = {"tie_word_embeddings": False}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One config.json and the family that it belongs to."""

    model_type: str
    family: Family
    fields: Mapping[str, object]

    def number(self, name: str) -> int:
        """A whole number of at least 1. Raises InvalidRequestError where it is missing or something else."""
        value = self.optional(name)
        if value is None:
            raise _refusal(f"config.json of a {self.model_type!r} model has no {self._own_name(name)}; add it")
        if value < 1:
            raise _refusal(f"config.json: {self._own_name(name)} is {value}; it is at least 1")
        return value

    def optional(self, name: str) -> int | None:
        """A whole number of at least 0, or None."""
        value = self._value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _refusal(f"config.json: {self._own_name(name)} is {value!r}; it is a whole number")
        return value

    def is_set(self, name: str) -> bool:
        """A switch; off where nobody mentions it."""
        return bool(self._value(name))

    def switch(self, name: str) -> bool | None:
        """A switch, or None where neither the file nor the architecture knows it."""
        value = self._value(name)
        return None if value is None else bool(value)

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers, or None."""
        value = self._value(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
            raise _refusal(f"config.json: {name} is {value!r}; it is a list of whole numbers")
        return tuple(value)

    def text(self, name: str) -> str | None:
        """A text, or None."""
        value = self._value(name)
        return value if isinstance(value, str) else None

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of texts, or None."""
        value = self._value(name)
        return None if value is None else tuple(map(str, value)) if isinstance(value, list) else None

    def mapping(self, name: str) -> Mapping[str, object]:
        """An object; empty where there is none."""
        value = self._value(name)
        return value if isinstance(value, dict) else {}

    def _value(self, name: str) -> object:
        own = self._own_name(name)
        value = self.fields.get(own, self.fields.get(name))
        if value is None and own not in self.fields:
            return self.family.defaults.get(name, _USUAL_DEFAULTS.get(name))
        return value

    def _own_name(self, name: str) -> str:
        return self.family.names.get(name, name)


def config_path(path: Path) -> Path:
    """config.json of a model folder, or the file itself. Raises InvalidRequestError where there is none."""
    found = path.expanduser()
    if found.is_dir():
        found = found / CONFIG_NAME
    if not found.is_file():
        raise _refusal(f"{found} is not there; give a Hugging Face model folder or its config.json")
    return found


def read_config(path: Path) -> ModelConfig:
    """Of a folder or a file. Raises InvalidRequestError."""
    file = config_path(path)
    if file.stat().st_size > _MAX_CONFIG_BYTES:
        raise _refusal(f"{file} is larger than any config.json; give a Hugging Face model folder or its config.json")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _refusal(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise _refusal(f"{file} holds no JSON object")
    return parse_config(content)


def parse_config(content: Mapping[str, object]) -> ModelConfig:
    """Raises InvalidRequestError for a type of model whose layers are not known here."""
    model_type = content.get("model_type")
    inner = content.get("text_config")
    if isinstance(model_type, str) and model_type in WRAPPERS and isinstance(inner, dict):
        outer = {name: content[name] for name in ("dtype", "torch_dtype") if name in content}
        content, model_type = {**outer, **inner}, inner.get("model_type", WRAPPERS[model_type])
    if not isinstance(model_type, str):
        raise _refusal("config.json has no model_type, so that its layers cannot be told; add it")
    family = FAMILIES.get(model_type)
    if family is None:
        raise _refusal(
            f"models of type {model_type!r} are not known to the planner; known are {', '.join(sorted(FAMILIES))}. "
            "If its layers are those of one of them, name that one as model_type in a copy of config.json"
        )
    return ModelConfig(model_type, family, content)


def _refusal(message: str) -> InvalidRequestError:
    return InvalidRequestError("model", message)
