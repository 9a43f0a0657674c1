"""May two runs be compared, and in what did their conditions differ? Pure.

Runs that do not tell under what they were made are refused, and so are runs of different workloads: the difference
would be that of the load. Everything else may differ, and is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cache_store.errors import PreconditionError
from services.loadtest.conditions import CacheState, Conditions
from services.loadtest.json_codec import to_json

OWN_BACKEND = "stemcache"

_PASSED_OVER = {
    "conditions_version", "start_unix_s", "load_before", "load_after", "partition", "tenants",
    "settings.result_dir", "settings.label", "settings.partition",
    "settings.server_max_num_seqs", "settings.server_hardware", "settings.server_version",
}  # fmt: skip
"""Differ between any two runs, or are compared by themselves."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one condition."""

    what: str
    first: str
    second: str


def check_comparable(first: Conditions, second: Conditions) -> None:
    """Raises PreconditionError that says what differs or lacks, and what would work."""
    for name, found in (("first", first), ("second", second)):
        if lacking := _lacking(found):
            raise PreconditionError(
                f"the {name} run does not tell {' and '.join(lacking)}; figures without their conditions cannot be "
                f"compared: {_remedy(found)}"
            )
    mine, yours = _workloads(first), _workloads(second)
    if mine != yours:
        raise PreconditionError(
            f"the runs are of different workloads: {_told(mine)} against {_told(yours)}; run both with the same "
            "workload, parameters and tenants"
        )


def _remedy(found: Conditions) -> str:
    if found.backend == OWN_BACKEND:
        return "run it with this version of `stemcache loadtest run`, where the operator's API can be asked"
    return "run it again and state of the server what it does not tell: --server-max-num-seqs N --server-hardware TEXT"


def differences(first: Conditions, second: Conditions) -> list[Difference]:
    """What was not the same."""
    mine, yours = dict(_flat("", to_json(first))), dict(_flat("", to_json(second)))
    found = [
        Difference(name, mine.get(name, "–"), yours.get(name, "–"))
        for name in sorted({*mine, *yours})
        if mine.get(name) != yours.get(name) and not _is_passed_over(name)
    ]
    return found + _tenant_differences(first, second)


def _lacking(found: Conditions) -> list[str]:
    lacks = {
        "its batch limit (max_num_seqs)": not _tells_batch_limit(found),
        "what was cached at its start (cache_state)": found.cache_state is CacheState.UNKNOWN,
        "its concurrency (arrival)": not found.arrival
        or (found.request_rate is None and found.max_concurrency is None and not _tenants_tell(found)),
        "its hardware (machine)": not _tells_hardware(found),
    }
    return [name for name, is_lacking in lacks.items() if is_lacking]


def _tells_batch_limit(found: Conditions) -> bool:
    if found.stated and found.stated.max_num_sequences:
        return True
    return bool(found.workers) and all(each.max_num_sequences for each in found.workers)


def _tells_hardware(found: Conditions) -> bool:
    """Another server's may be the client's machine; our own is asked for its workers by the operator's API."""
    if found.backend != OWN_BACKEND and found.is_remote:
        return bool(found.stated and found.stated.hardware)
    return bool(found.machine.cpu and found.machine.cores)


def _tenants_tell(found: Conditions) -> bool:
    """Whether each tenant has a rate or a concurrency of its own, or the times of a trace."""
    if found.arrival in ("trace", "immediate"):
        return True
    return bool(found.tenants) and all(each.request_rate or each.max_concurrency for each in found.tenants)


def _workloads(found: Conditions) -> list[str]:
    """Of all tenants, whatever they are called."""
    return sorted(f"{each.workload} ({_settings(each.parameters)})" for each in found.tenants)


def _told(workloads: list[str]) -> str:
    return " and ".join(dict.fromkeys(workloads)) or "none"


def _settings(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()) if value is not None)


def _tenant_differences(first: Conditions, second: Conditions) -> list[Difference]:
    """Weights, rates and quotas, tenant by tenant in their order."""
    found = []
    for at, (mine, yours) in enumerate(zip(first.tenants, second.tenants, strict=True), start=1):
        for name in ("weight", "request_rate", "max_concurrency", "quota"):
            values = (getattr(mine, name), getattr(yours, name))
            if values[0] != values[1]:
                found.append(Difference(f"tenant {at}: {name}", *(_shown(each) for each in values)))
    return found


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Leaves by their path."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _flat(f"{path}.{name}" if path else name, each)
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from _flat(f"{path}[{at}]", each)
    else:
        yield path, _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return _settings(value) or "–"
    return "–" if value is None else str(value)


def _is_passed_over(name: str) -> bool:
    return any(name == each or name.startswith((f"{each}.", f"{each}[")) for each in _PASSED_OVER)
