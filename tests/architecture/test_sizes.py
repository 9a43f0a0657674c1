"""Size budgets: a reader should not meet a giant."""

from __future__ import annotations

import ast
from pathlib import Path
from statistics import median

from tests.architecture.test_imports import ROOT, nodes, source_files

MAX_FILE_LINES = 400
MAX_MEDIAN_FILE_LINES = 150
MAX_FUNCTION_LINES = 60
MAX_MEDIAN_FUNCTION_LINES = 12


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _has_docstring(path: Path) -> bool:
    module = nodes(path)[0]
    return isinstance(module, ast.Module) and bool(ast.get_docstring(module))


def test_files_stay_readable() -> None:
    sizes = {str(path.relative_to(ROOT)): _lines(path) for path in source_files() if _lines(path) > 1}
    assert {name: size for name, size in sizes.items() if size > MAX_FILE_LINES} == {}
    assert median(sizes.values()) <= MAX_MEDIAN_FILE_LINES


def test_functions_fit_on_a_screen() -> None:
    sizes = {}
    for path in source_files():
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                sizes[f"{path.relative_to(ROOT)}:{node.name}"] = node.end_lineno - node.lineno + 1
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION_LINES} == {}
    assert median(sizes.values()) <= MAX_MEDIAN_FUNCTION_LINES


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT)) for path in source_files() if path.read_text().strip() and not _has_docstring(path)
    ]
    assert silent == []
