"""Compiles the kernels at first use and keeps the libraries in the cache folder.

A library is named after everything that shapes it: source and headers, compiler and its version, flags, features of
this CPU. A file lock lets several workers start at once; a library is renamed into place when whole. It runs with the
rights of this process, so the folder must be writable by its user only, like any folder of programs.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import subprocess
from enum import StrEnum
from pathlib import Path

import structlog

from cache_store.encoding import encode
from cache_store.errors import StemcacheError
from worker.model_files.locks import exclusive
from worker.torch_runner.compiler import Compiler

_SOURCES = Path(__file__).parent
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti")
_THREADS = "-fopenmp"
_TIMEOUT_S = 120.0
_log = structlog.get_logger(__name__)


class Kernel(StrEnum):
    """A library of ours, by the name of its source."""

    ATTENTION = "paged_attention"
    FORWARD = "fused_forward"

    @property
    def source(self) -> Path:
        """Its C++ file."""
        return _SOURCES / f"{self.value}.cpp"


class KernelBuildError(StemcacheError):
    """The kernel cannot be compiled or loaded here; its work goes on without it."""


def build_kernel(compiler: Compiler, cache_dir: Path, kernel: Kernel = Kernel.ATTENTION) -> ctypes.CDLL:
    """The loaded library, compiled if `cache_dir` lacks it. Raises KernelBuildError, with the compiler's words."""
    library = cache_dir / "kernels" / f"{kernel}-{_key(compiler, kernel)}.so"
    try:
        with exclusive(library.with_suffix(".lock")):
            if not library.exists():
                _compile(compiler, kernel, library)
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise KernelBuildError(f"the kernel {kernel} cannot be kept or loaded: {error}") from error


def _compile(compiler: Compiler, kernel: Kernel, library: Path) -> None:
    making = library.with_suffix(".making")
    base = (*compiler.command, *_FLAGS, "-x", "c++", str(kernel.source), "-o", str(making))
    first = _run((*base, _THREADS))
    if first.returncode:
        second = _run(base)  # a compiler without OpenMP still gives a kernel for one thread
        if second.returncode:
            raise KernelBuildError(f"{' '.join(base)} fails: {second.stderr.strip()[-500:] or 'without a word'}")
        _log.warning("kernel_without_threads", compiler=compiler.command[0], reason=first.stderr.strip()[-200:])
    making.rename(library)
    _log.info("kernel_compiled", compiler=compiler.command[0], library=str(library))


def _key(compiler: Compiler, kernel: Kernel) -> str:
    version = _run((*compiler.command, "--version"))
    if version.returncode:
        raise KernelBuildError(f"{' '.join(compiler.command)} --version fails: it is no compiler")
    source = [path.read_bytes() for path in (kernel.source, *sorted(_SOURCES.glob("*.h")))]
    data = encode(*source, *compiler.command, version.stdout, *_FLAGS, platform.machine(), _cpu_features())
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _cpu_features() -> str:
    """What -march=native depends on: a cache folder may be shared by unequal machines."""
    wanted = ("flags", "features", "model name", "cpu part")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return "\n".join(sorted({line for line in lines if line.lower().startswith(wanted)}))


def _run(command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603  # the machine's own compiler
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelBuildError(f"{command[0]} cannot be run: {error}") from error
