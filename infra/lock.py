"""Writes infra/requirements*.txt from what is installed: the closure of pyproject's dependencies, pinned.

Run in an environment where a new set has been tried: `python infra/lock.py`. Pins carry no `+cpu`, so that the index in
use decides which build of torch is taken.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
HEADER = "# Written by infra/lock.py; do not edit.\n"


def closure(roots: list[str]) -> dict[str, str]:
    """Name to version of `roots` and all that they need on this platform."""
    pins: dict[str, str] = {}
    queue = [(Requirement(text), "") for text in roots]
    walked: set[tuple[str, str]] = set()
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        try:
            pins[name] = version(name).split("+")[0]
        except PackageNotFoundError:
            continue
        for child in requires(name) or []:
            child_requirement = Requirement(child)
            for child_extra in requirement.extras or {""}:
                if (str(child_requirement), child_extra) not in walked:
                    walked.add((str(child_requirement), child_extra))
                    queue.append((child_requirement, child_extra))
    return pins


def write(path: Path, pins: dict[str, str]) -> None:
    """One pin a line."""
    path.write_text(HEADER + "".join(f"{name}=={pin}\n" for name, pin in sorted(pins.items())))


def main() -> None:
    """Writes both files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    runtime = closure([*project["dependencies"], *extras["embedded"], "hatchling", "editables"])
    write(ROOT / "infra" / "requirements.txt", runtime)
    development = closure(extras["dev"])
    write(
        ROOT / "infra" / "requirements-dev.txt",
        {name: pin for name, pin in development.items() if name not in runtime},
    )


if __name__ == "__main__":
    main()
