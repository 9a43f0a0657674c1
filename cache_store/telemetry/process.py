"""What the kernel says about this process, by the names that Prometheus' own clients use. Linux only, as all of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from cache_store.telemetry.families import Family, counter, gauge

_START_FIELD = 19
"""Of /proc/self/stat, counted after the command's name: when the process began, in ticks since the boot."""


def resident_bytes() -> int:
    """Memory of this process that is in RAM now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def process_families() -> Iterator[Family]:
    """Memory, processor time, files and start of this process."""
    times = os.times()
    yield gauge("process_resident_memory_bytes", "Memory that is in RAM.", resident_bytes())
    yield counter("process_cpu_seconds_total", "Processor time, user and system.", times.user + times.system)
    yield gauge("process_open_fds", "Open files and sockets.", sum(1 for _ in Path("/proc/self/fd").iterdir()))
    yield gauge("process_start_time_seconds", "Start, in seconds since 1970.", _start_unix_s())


def _start_unix_s() -> float:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s
