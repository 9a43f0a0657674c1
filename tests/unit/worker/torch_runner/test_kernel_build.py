"""Compiling the kernel: once for all workers of a machine, and what happens without a compiler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.compilers import compiler, needs_compiler
from tests.support.tiny_models import kernel_cache
from worker.torch_runner import kernel_check
from worker.torch_runner.compiler import Compiler, find_compiler
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.kernel_build import KernelBuildError, build_kernel
from worker.torch_runner.loader import LoadedModel


@needs_compiler
def test_many_builders_at_once_compile_once(tmp_path: Path) -> None:
    counting = tmp_path / "counting"
    counting.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec {" ".join(compiler().command)} "$@"\n')
    counting.chmod(0o755)
    builders = [
        threading.Thread(target=build_kernel, args=(Compiler((str(counting),)), tmp_path / "cache")) for _ in range(3)
    ]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert sum("-shared" in call for call in calls) == 1
    assert [file.suffix for file in sorted((tmp_path / "cache" / "kernels").iterdir())] == [".lock", ".so"]


@pytest.mark.nightly  # it compiles for itself
@needs_compiler
def test_a_build_that_was_killed_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    name = Path(build_kernel(compiler(), kernel_cache(tmp_path / "whole"))._name).name
    killed = (tmp_path / "kernels" / name).with_suffix(".making")
    killed.parent.mkdir()
    killed.write_bytes(b"half a library")
    assert build_kernel(compiler(), tmp_path).stemcache_supports(6, 2, 64, 64) == 1


@needs_compiler
def test_shapes_that_the_kernel_does_not_compute_are_told(tmp_path: Path) -> None:
    supports = build_kernel(compiler(), kernel_cache(tmp_path)).stemcache_supports
    widths = ((16, 16), (64, 64), (256, 256), (192, 128), (576, 512), (17, 16), (16, 24 + 1), (1040, 16))
    expected = [True] * 5 + [False] * 3
    assert [bool(supports(6, 2, *both)) for both in widths] == expected
    assert not supports(6, 4, 64, 64)


def test_a_program_that_is_no_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelBuildError, match="false"):
        build_kernel(Compiler(("false",)), tmp_path)


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    failing = tmp_path / "failing"
    failing.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "no space in the sky" >&2\nexit 1\n')
    failing.chmod(0o755)
    with pytest.raises(KernelBuildError, match="no space in the sky"):
        build_kernel(Compiler((str(failing),)), tmp_path)


def test_a_library_that_does_not_load_is_an_error(tmp_path: Path) -> None:
    lying = tmp_path / "lying"
    lying.write_text('#!/bin/sh\nwhile [ "$1" ]; do [ "$1" = -o ] && echo nothing > "$2"; shift; done\n')
    lying.chmod(0o755)
    with pytest.raises(KernelBuildError, match="kept or loaded"):
        build_kernel(Compiler((str(lying),)), tmp_path)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelBuildError):
        build_kernel(find_compiler() or Compiler(("true",)), tmp_path / "file")


@pytest.mark.parametrize("variable", ["CC", "CXX"])
def test_a_variable_that_names_no_compiler_means_plain_torch(
    tiny: Callable[[str], LoadedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    for value in ("/bin/false", "/no/such/compiler"):
        monkeypatch.setenv(variable, value)
        assert fastest_attention(tiny("llama"), cache_dir=tmp_path).name == "gather"
        assert kernel_check.main([str(tmp_path)]) == 1


@needs_compiler
def test_with_a_compiler_the_kernel_is_used(tiny: Callable[[str], LoadedModel], tmp_path: Path) -> None:
    assert fastest_attention(tiny("llama"), cache_dir=kernel_cache(tmp_path)).name == "native"
    assert kernel_check.main([str(kernel_cache(tmp_path))]) == 0


def test_arguments_of_the_compiler_may_stand_in_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "sh -c 'a b'")
    assert find_compiler() == Compiler(("sh", "-c", "a b"))
