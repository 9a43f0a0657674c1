"""Reads a tenants file: who sends what, how fast, and by which key. TOML or JSON; a table per tenant.

    [acme]
    weight = 2
    workload = "shared-prefix"
    rate = 4                                # or concurrency = 8
    prefix_len = 1024                       # any parameter of the workload
    key_env = "ACME_KEY"                    # or key, or key_file; none: made for the run by the operator's API
    quota = { min = "25%", max = "50%" }    # of a tenant that is made for the run

What a table leaves out is taken from the command line.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from cache_store.errors import InvalidRequestError
from services.loadtest.arrivals import MAX_CALLERS, MAX_REQUESTS
from services.loadtest.workloads import WorkloadKind, WorkloadSpec

_NUMBERS = ("weight", "rate", "concurrency", "burstiness", "num_prompts", "duration")
_TEXTS = ("key", "key_env", "key_file", "workload")
_QUOTA = ("min", "max", "strict", "weight", "max_pinned", "requests_in_flight", "tokens_per_s")
PARAMETERS = tuple(each.name for each in fields(WorkloadSpec) if each.name != "kind")


@dataclass(frozen=True, slots=True)
class TenantEntry:
    """One table; None where it says nothing."""

    tenant: str
    weight: float = 1.0
    rate: float | None = None
    concurrency: int | None = None
    burstiness: float | None = None
    num_prompts: int | None = None
    duration: float | None = None
    workload: WorkloadKind | None = None
    parameters: Mapping[str, str | int | float] = field(default_factory=dict)
    key: str = field(default="", repr=False)
    key_env: str = ""
    key_file: str = ""
    quota: Mapping[str, str | int | float] = field(default_factory=dict)


def read_tenants_file(path: Path) -> tuple[TenantEntry, ...]:
    """Raises InvalidRequestError that names the tenant and the key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refusal(f"{path} cannot be read: {error}") from error
    try:
        if path.suffix == ".json":
            content = json.loads(text)
        elif path.suffix == ".toml":
            content = tomllib.loads(text)
        else:
            raise _refusal(f"{path} is neither .toml nor .json; write a table per tenant in one of these")
    except ValueError as error:
        raise _refusal(f"{path} cannot be parsed: {error}") from error
    if not isinstance(content, dict) or not content:
        raise _refusal(f"{path} has no tenants; write a table per tenant, like [acme]")
    return tuple(_entry(f"{path}: {name}", name, table) for name, table in content.items())


def _entry(where: str, name: str, table: object) -> TenantEntry:
    if not isinstance(table, dict):
        raise _refusal(f"{where} is {table!r}; a table is needed")
    known = {*_NUMBERS, *_TEXTS, *PARAMETERS, "quota"}
    if unknown := sorted(set(table) - known):
        raise _refusal(f"{where}: {', '.join(unknown)} is unknown; known are {', '.join(sorted(known))}")
    numbers = {key: _number(where, key, table[key]) for key in _NUMBERS if key in table}
    texts = {key: _text(where, key, table[key]) for key in _TEXTS if key in table}
    if "rate" in numbers and "concurrency" in numbers:
        raise _refusal(f"{where}: rate is an open loop, concurrency a closed one; give one of them")
    if sum(key in texts for key in ("key", "key_env", "key_file")) > 1:
        raise _refusal(f"{where}: give one of key, key_env and key_file")
    return TenantEntry(
        tenant=name,
        weight=_positive(where, "weight", numbers.get("weight", 1.0)),
        rate=numbers.get("rate"),
        concurrency=_whole(where, numbers, "concurrency", MAX_CALLERS),
        burstiness=numbers.get("burstiness"),
        num_prompts=_whole(where, numbers, "num_prompts", MAX_REQUESTS),
        duration=numbers.get("duration"),
        workload=_kind(where, texts["workload"]) if "workload" in texts else None,
        parameters={key: _parameter(where, key, table[key]) for key in PARAMETERS if key in table},
        key=texts.get("key", ""),
        key_env=texts.get("key_env", ""),
        key_file=texts.get("key_file", ""),
        quota=_quota(where, table.get("quota", {})),
    )


def _quota(where: str, table: object) -> dict[str, str | int | float]:
    if not isinstance(table, dict) or set(table) - set(_QUOTA):
        raise _refusal(f"{where}: quota is {table!r}; it may have {', '.join(_QUOTA)}")
    return {key: _scalar(where, f"quota.{key}", value) for key, value in table.items()}


def _kind(where: str, text: str) -> WorkloadKind:
    try:
        return WorkloadKind(text.replace("_", "-"))
    except ValueError:
        raise _refusal(f"{where}: workload is {text!r}; known are {', '.join(WorkloadKind)}") from None


def _parameter(where: str, key: str, value: object) -> str | int | float:
    usual = next(each.default for each in fields(WorkloadSpec) if each.name == key)
    kind = type(usual)
    if type(value) is kind or (kind is float and type(value) is int):
        assert isinstance(value, str | int | float)
        return value
    raise _refusal(f"{where}: {key} is {value!r}; it is like {usual!r}")


def _scalar(where: str, key: str, value: object) -> str | int | float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _refusal(f"{where}: {key} is {value!r}; a number or text is needed")
    return value


def _number(where: str, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refusal(f"{where}: {key} is {value!r}; a number is needed")
    return _positive(where, key, float(value))


def _positive(where: str, key: str, value: float) -> float:
    if not value > 0:
        raise _refusal(f"{where}: {key} is {value:g}; it is above 0")
    return value


def _whole(where: str, numbers: Mapping[str, float], key: str, limit: int) -> int | None:
    if key not in numbers:
        return None
    if numbers[key] > limit:
        raise _refusal(f"{where}: {key} is {numbers[key]:g}; it is at most {limit:,}")
    if numbers[key] != int(numbers[key]):
        raise _refusal(f"{where}: {key} is {numbers[key]:g}; a whole number is needed")
    return int(numbers[key])


def _text(where: str, key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _refusal(f"{where}: {key} is {value!r}; text is needed")
    return value


def _refusal(message: str) -> InvalidRequestError:
    return InvalidRequestError("tenants", message)
