"""Processes of a cluster that faults happen to: each with its own log, in a network namespace where one is given."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
POLL_S = 0.02

IN_NO_NAMESPACE: tuple[str, ...] = ()
"""The prefix of a command that runs in the machine's own network."""


@dataclass
class Child:
    """One process, started again under the same name if need be; its log grows over all its lives."""

    name: str
    module: str
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, Any] | None = None
    """What it reads as JSON from its standard input."""
    prefix: Sequence[str] = IN_NO_NAMESPACE
    process: Process | None = None

    async def start(self) -> None:
        """Begins a life; an earlier one may still run (as a zombie does)."""
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", "PYTHONUNBUFFERED": "1"}
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.prefix, sys.executable, "-m", self.module, cwd=ROOT, stdin=PIPE if self.told else DEVNULL,
                stdout=log, stderr=log, env={**environment, **self.environment},
            )  # fmt: skip
        if self.told is not None:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(self.told).encode())
            self.process.stdin.close()

    @property
    def pid(self) -> int:
        """Of the life of now."""
        assert self.process is not None, "not started"
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        assert self.process is not None, "not started"
        self.process.send_signal(number)

    async def end(self) -> None:
        """Kills it where it still runs, stopped or not."""
        if self.process is not None:
            await end_process(self.process)

    def events(self, name: str, since_unix_s: float = 0.0) -> list[dict[str, Any]]:
        """Events of its log, each with the time as `unix_s`."""
        return [event for event in _events(self.log) if event["event"] == name and event["unix_s"] >= since_unix_s]

    async def event(self, name: str, since_unix_s: float = 0.0, timeout_s: float = 60.0) -> dict[str, Any]:
        """The first such event, as soon as it is there."""
        deadline_s = time.monotonic() + timeout_s
        while not (found := self.events(name, since_unix_s)):
            assert self.process is not None, "not started"
            assert self.process.returncode is None, f"{self.name} has ended; see {self.log}"
            assert time.monotonic() < deadline_s, f"{self.name} does not say {name}; see {self.log}"
            await asyncio.sleep(POLL_S)
        return found[0]


async def end_process(process: Process) -> None:
    """Kills a process where it still runs, and waits for it."""
    if process.returncode is None:
        process.send_signal(signal.SIGKILL)
    await process.wait()


def _events(log: Path) -> Iterator[dict[str, Any]]:
    for line in log.read_text(errors="replace").splitlines():
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except ValueError:  # being written
            continue
        if "event" in event and "timestamp" in event:
            event["unix_s"] = datetime.fromisoformat(event["timestamp"]).timestamp()
            yield event
