"""What figures depend on: the machine, how busy it is, versions, the commit of the code. Reads the machine only."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from services.loadtest.conditions import Machine, MachineLoad
from services.version import VERSION

_PACKAGES = ("grpcio", "protobuf", "uvloop", "numpy", "torch", "transformers", "aiohttp")
_SOURCE = Path(__file__).resolve().parents[2]
_COMMAND_S = 5.0
_LOOK_S = 0.2


def machine() -> Machine:
    """This machine."""
    return Machine(
        cpu=_cpu_name(),
        cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        gpus=_gpus(),
        kernel=platform.release(),
        python=platform.python_version(),
    )


def machine_load() -> MachineLoad:
    """How busy it is now; looks for a fifth of a second, which it sleeps."""
    busy, total = _ticks()
    time.sleep(_LOOK_S)
    busy_after, total_after = _ticks()
    return MachineLoad(
        unix_s=round(time.time(), 3),
        load_1min=round(os.getloadavg()[0], 2),
        cpu_share=round((busy_after - busy) / max(1, total_after - total), 3),
        available_bytes=os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


def versions() -> dict[str, str]:
    """Of the product and of packages that it runs on here."""
    found = {"stemcache": VERSION}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """Of the source tree that runs, with a + where files are changed; empty outside of one."""
    if not (_SOURCE / ".git").exists():
        return ""
    changed = _output("git", "-C", str(_SOURCE), "status", "--porcelain")
    return _output("git", "-C", str(_SOURCE), "rev-parse", "HEAD") + ("+" if changed else "")


def _ticks() -> tuple[int, int]:
    """Of all cores since boot: busy ones, and all."""
    ticks = [int(each) for each in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _gpus() -> tuple[str, ...]:
    return tuple(_output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines())


def _output(*command: str) -> str:
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        run = subprocess.run(  # noqa: S603  # fixed words
            (program, *command[1:]), capture_output=True, text=True, timeout=_COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""
