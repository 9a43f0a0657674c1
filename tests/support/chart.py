"""The Helm chart as its checks see it: rendered with values, and what is in it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
CHART = ROOT / "infra" / "helm" / "stemcache"
SMALL: dict[str, Any] = {"model": {"name": "digest", "runner": "digest"}}
"""The least that has to be given."""


def lint_chart() -> ModuleType:
    """The module infra/lint_chart.py, whose folder is no package."""
    spec = importlib.util.spec_from_file_location("lint_chart", ROOT / "infra" / "lint_chart.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Objects by name."""
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == kind}


def pods(documents: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Specifications of pods by component."""
    for document in documents:
        spec = document.get("spec", {})
        templates = [spec.get("template")]
        if document["kind"] == "RayCluster":
            templates = [spec["headGroupSpec"]["template"], *(each["template"] for each in spec["workerGroupSpecs"])]
        for template in templates:
            if template:
                yield template["metadata"]["labels"]["app.kubernetes.io/component"], template["spec"]


def variables(container: dict[str, Any]) -> dict[str, str]:
    """What a container is told; what Kubernetes fills in is a name that would do."""
    return {each["name"]: each.get("value", "sc-worker-0") for each in container.get("env", [])}
