"""Processes of the benchmark: they are told JSON, say where they listen, and their processor time is read."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.bench.machine import ROOT

_START_S, _STOP_S = 60.0, 15.0
_CPU_CLOCK = 2
"""Linux' number of the clock that counts the processor time of another process, to the nanosecond."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A process that listens."""

    address: str
    pid: int
    metrics_address: str = ""
    """Where it shows metrics; empty: nowhere."""

    def cpu_s(self) -> float:
        """Seconds that all its threads have computed so far."""
        return time.clock_gettime((~self.pid << 3) | _CPU_CLOCK)


@asynccontextmanager
async def listening(module: str, told: Mapping[str, object]) -> AsyncIterator[Listening]:
    """A process that runs `module` until the block ends."""
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", "PATH": os.environ["PATH"], "PYTHONHASHSEED": "0"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, cwd=ROOT, stdin=PIPE, stdout=PIPE, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(told).encode())
    process.stdin.close()
    try:
        async with asyncio.timeout(_START_S):
            address, _, metrics_address = (await process.stdout.readline()).decode().strip().partition(" ")
        if not address:
            raise RuntimeError(f"{module} did not start; its reason stands above")
        yield Listening(address, process.pid, metrics_address)
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
