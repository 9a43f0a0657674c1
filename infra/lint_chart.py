"""Checks the Helm chart without a cluster: helm's lint, and every object that it renders against its schema.

Rendered are all examples. Objects of Kubernetes are checked for each of VERSIONS, those of operators by the schemas in
infra/helm/schemas, which know the fields that the chart uses. Part of `make lint-infra`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import yaml

FOLDER = Path(__file__).parent / "helm"
CHART = FOLDER / "stemcache"
VERSIONS = ("1.30", "1.34")


def examples() -> dict[str, dict[str, Any]]:
    """Values by file name."""
    return {path.name: yaml.safe_load(path.read_text()) for path in sorted((CHART / "examples").glob("*.yaml"))}


def render(values: dict[str, Any], chart: Path = CHART) -> list[dict[str, Any]]:
    """All objects. Raises HelmError, which names a value that is refused."""
    rendered = helm_python.Chart.load(str(chart)).render(values, name="sc", namespace="serving")
    texts = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def faults(document: dict[str, Any]) -> Iterator[str]:
    """What is wrong with an object."""
    schema = FOLDER / "schemas" / f"{document['kind']}.json"
    name = f"{document['kind']} {document['metadata']['name']}"
    if schema.exists():
        for error in jsonschema.Draft7Validator(json.loads(schema.read_text())).iter_errors(document):
            yield f"{name}: {error.json_path}: {error.message}"
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{name} (Kubernetes {version}): {error}"


def main() -> int:
    """Says what is wrong; exit status 1 where something is."""
    found = []
    for file, values in examples().items():
        linted = helm_python.lint(str(CHART), values, strict=True)
        found += [f"{file}: {each['path']}: {each['error']}" for each in linted["messages"] if each["severity"] > 1]
        documents = render(values)
        found += [f"{file}: {fault}" for document in documents for fault in faults(document)]
        sys.stdout.write(f"{file}: {len(documents)} objects\n")
    for each in found:
        sys.stderr.write(f"{each}\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
