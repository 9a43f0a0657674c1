"""What an `adapter_config.json` of the PEFT library asks for, and why it is refused where it cannot be computed here.

Served is plain LoRA on linear layers: y = W x + scale * B (A x). Every other field must have a value that changes
nothing; a field that this build does not know is refused unless it is empty. Rules and their order are those of PEFT.
Every fault is an InvalidRequestError on the field `folder`. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cache_store.errors import InvalidRequestError

ALL_LINEAR = "all-linear"
_LAYER = re.compile(r".*?\.[^.]*\.(?P<index>\d+)\.")

_READ = frozenset(
    {
        "peft_type",
        "r",
        "lora_alpha",
        "target_modules",
        "exclude_modules",
        "rank_pattern",
        "alpha_pattern",
        "use_rslora",
        "layers_to_transform",
    }
)
_INERT = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "inference_mode",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    }
)
"""They name things, or matter in training only."""
_PLAIN_INITS = frozenset({"gaussian", "eva", "orthogonal"})
"""Ways to begin a training that leave the weights of the model as they are."""
_REASONS = {
    "use_dora": "DoRA also changes the magnitude of the model's weights",
    "use_qalora": "QALoRA pools its inputs",
    "lora_bias": "its biases are trained too",
    "fan_in_fan_out": "it is for layers that hold their weights transposed (Conv1D, as in GPT-2)",
    "modules_to_save": "it replaces whole modules of the model",
    "trainable_token_indices": "it changes embeddings",
    "target_parameters": "it adapts parameters that are no linear layers, as those of experts",
    "layer_replication": "it adds layers to the model",
    "layers_pattern": "layers can be picked by layers_to_transform alone",
    "alora_invocation_tokens": "an activated LoRA depends on the tokens that came before",
}


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Which modules are adapted, and how."""

    rank: int
    alpha: float
    targets: str | tuple[str, ...]
    """A regular expression, ALL_LINEAR, or ends of paths."""
    excluded: str | tuple[str, ...]
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    by_root_of_rank: bool
    """Scale = alpha / sqrt(rank) (rsLoRA) instead of alpha / rank."""
    layers: frozenset[int] | None
    """None: all."""

    def adapts(self, path: str) -> bool:
        """Whether the module of that path is meant."""
        if self.excluded and _is_named(self.excluded, path):
            return False
        if self.targets == ALL_LINEAR:
            return True
        if not _is_named(self.targets, path):
            return False
        if self.layers is None or isinstance(self.targets, str):
            return True
        layer = _LAYER.match(path)
        return layer is not None and int(layer["index"]) in self.layers

    def rank_of(self, path: str) -> int:
        """Rows of A and columns of B."""
        return self.rank_pattern.get(_pattern_for(self.rank_pattern, path), self.rank)

    def scale_of(self, path: str) -> float:
        """Factor on B A."""
        alpha = self.alpha_pattern.get(_pattern_for(self.alpha_pattern, path), self.alpha)
        rank = self.rank_of(path)
        return alpha / math.sqrt(rank) if self.by_root_of_rank else alpha / rank


def read_lora_config(config: Mapping[str, object], what: str) -> LoraConfig:
    """The adapter that `config` describes; `what` names its file. Raises InvalidRequestError."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise refusal(f"{what} has peft_type {kind!r}; served is LORA")
    _refuse_others(config, what)
    reader = _Reader(config, what)
    return LoraConfig(
        rank=reader.rank("r", config.get("r")),
        alpha=reader.number("lora_alpha", config.get("lora_alpha")),
        targets=reader.names("target_modules"),
        excluded=reader.names("exclude_modules") if config.get("exclude_modules") else (),
        rank_pattern={key: reader.rank("rank_pattern", value) for key, value in reader.table("rank_pattern")},
        alpha_pattern={key: reader.number("alpha_pattern", value) for key, value in reader.table("alpha_pattern")},
        by_root_of_rank=config.get("use_rslora") is True,
        layers=reader.layers(),
    )


def refusal(message: str) -> InvalidRequestError:
    """An adapter that is not served, and why."""
    return InvalidRequestError("folder", message)


def _refuse_others(config: Mapping[str, object], what: str) -> None:
    for name in sorted(config.keys() - _READ - _INERT):
        value = config[name]
        if name == "bias" and value == "none":
            continue
        if name == "init_lora_weights" and (isinstance(value, bool) or value in _PLAIN_INITS):
            continue
        if not value:
            continue
        reason = _REASONS.get(name, "it is not known to leave the outputs of plain LoRA as they are")
        if name == "init_lora_weights":
            reason = "its training began from changed weights of the model; save it converted to plain LoRA"
        if name == "bias":
            reason = "biases of the model are trained too; only 'none' is served"
        raise refusal(f"{what} has {name} = {str(value)[:64]!r}, which is not served: {reason}")


class _Reader:
    def __init__(self, config: Mapping[str, object], what: str) -> None:
        self._config = config
        self._what = what

    def rank(self, name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise refusal(f"{self._what}: {name} is {value!r}; a rank is a whole number of at least 1")
        return value

    def number(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise refusal(f"{self._what}: {name} is {value!r}; it is a number")
        return float(value)

    def names(self, name: str) -> str | tuple[str, ...]:
        value = self._config.get(name)
        if isinstance(value, str) and value:
            if value != ALL_LINEAR:
                self._expression(name, value)
            return ALL_LINEAR if value.lower() == ALL_LINEAR else value
        if isinstance(value, list) and value and all(isinstance(each, str) and each for each in value):
            return tuple(value)
        raise refusal(f"{self._what}: {name} is {str(value)[:64]!r}; it is a list of names or a regular expression")

    def table(self, name: str) -> Iterable[tuple[str, object]]:
        value = self._config.get(name) or {}
        if not isinstance(value, Mapping):
            raise refusal(f"{self._what}: {name} is no object")
        for pattern in value:
            self._expression(name, pattern)
        return value.items()

    def layers(self) -> frozenset[int] | None:
        value = self._config.get("layers_to_transform")
        if value is None or value == []:
            return None
        layers = value if isinstance(value, list) else [value]
        if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in layers):
            raise refusal(f"{self._what}: layers_to_transform is {str(value)[:64]!r}; it is a list of layer numbers")
        return frozenset(layers)

    def _expression(self, name: str, text: str) -> None:
        try:
            re.compile(text)
        except re.error as error:
            raise refusal(f"{self._what}: {name} holds {text[:64]!r}, no regular expression: {error}") from error


def _is_named(names: str | tuple[str, ...], path: str) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, path) is not None
    return any(path == name or path.endswith(f".{name}") for name in names)


def _pattern_for(patterns: Mapping[str, object], path: str) -> str:
    """The first pattern that fits the end of the path, as PEFT's get_pattern_key; else the path itself."""
    return next((key for key in patterns if re.match(rf"(.*\.)?({key})$", path)), path)
