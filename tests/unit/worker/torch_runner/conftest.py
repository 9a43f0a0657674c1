"""Tiny models, written and loaded once per run of the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tiny_models import load_tiny
from worker.torch_runner.loader import LoadedModel


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LoadedModel]:
    """The loaded tiny model of a name."""
    folder: Path = tmp_path_factory.mktemp("tiny")
    loaded: dict[str, LoadedModel] = {}

    def get(name: str) -> LoadedModel:
        if name not in loaded:
            loaded[name] = load_tiny(name, folder)
        return loaded[name]

    return get
