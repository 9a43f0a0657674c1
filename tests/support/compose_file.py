"""Reads infra/compose.yaml as a container engine does: variables, merges, and what each service is told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

PATH = Path(__file__).parents[2] / "infra" / "compose.yaml"
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\}")


@dataclass(frozen=True)
class Mount:
    """A folder or a volume, and where a service finds it."""

    source: str
    target: str
    is_read_only: bool


@dataclass(frozen=True)
class Service:
    """One service."""

    name: str
    raw: Mapping[str, Any]

    @property
    def command(self) -> list[str]:
        """What runs, word by word as it stands there: an engine without a shell splits nothing."""
        return [*self.raw.get("entrypoint", []), *self.raw["command"]]

    @property
    def environment(self) -> dict[str, str]:
        return {name: str(value) for name, value in (self.raw.get("environment") or {}).items()}

    @property
    def profiles(self) -> list[str]:
        return list(self.raw.get("profiles", []))

    @property
    def networks(self) -> dict[str, list[str]]:
        """Names under which it is found in each."""
        found = self.raw["networks"]
        if isinstance(found, list):
            return {name: [self.name] for name in found}
        return {name: [self.name, *((more or {}).get("aliases", []))] for name, more in found.items()}

    @property
    def mounts(self) -> list[Mount]:
        parts = [text.split(":") for text in self.raw.get("volumes", [])]
        return [Mount(each[0], each[1], each[2:] == ["ro"]) for each in parts]

    @property
    def secrets(self) -> list[str]:
        return list(self.raw.get("secrets", []))

    @property
    def health_command(self) -> list[str]:
        test = list(self.raw.get("healthcheck", {}).get("test", []))
        return test[1:] if test[:1] == ["CMD"] else []


def read(environ: Mapping[str, str]) -> dict[str, Any]:
    """The whole file. Raises KeyError for a variable that has to be set and is not."""
    return dict(_filled(yaml.safe_load(PATH.read_text()), environ))


def services(environ: Mapping[str, str], profile: str) -> dict[str, Service]:
    """Those of a profile."""
    found = {name: Service(name, raw) for name, raw in yaml.safe_load(PATH.read_text())["services"].items()}
    return {
        name: Service(name, _filled(service.raw, environ))
        for name, service in found.items()
        if profile in service.profiles
    }


def _filled(value: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, environ) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, environ) for each in value]
    return _VARIABLE.sub(lambda found: _value(found, environ), value) if isinstance(value, str) else value


def _value(found: re.Match[str], environ: Mapping[str, str]) -> str:
    set_to = environ.get(found["name"], "")
    if set_to or found["kind"] == "-":
        return set_to or found["rest"]
    raise KeyError(f"{found['name']} is not set: {found['rest']}")
