"""`stemcache up` as a user starts it: a process of its own, and what became of everything it started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 150.0
STOP_TIMEOUT_S = 90.0


@dataclass
class RunningUp:
    """Made by `start_up`; `stop` ends it."""

    process: subprocess.Popen[str]
    data_dir: Path
    log: Path
    seen: dict[int, psutil.Process] = field(default_factory=dict)

    def state(self) -> dict[str, object]:
        """What other commands find."""
        document: dict[str, object] = json.loads((self.data_dir / "up.json").read_text())
        return document

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs another command against this system."""
        return run_stemcache(*arguments, "--data-dir", str(self.data_dir))

    def output(self) -> str:
        """All that it said."""
        return self.log.read_text()

    def note_children(self) -> dict[int, psutil.Process]:
        """Remembers all processes below it now, for `left_over`."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            self.seen[child.pid] = child
        return self.seen

    def child(self, word: str) -> psutil.Process:
        """The process whose command line has `word` in it."""
        found = [each for each in self.note_children().values() if each.is_running() and word in words(each)]
        assert found, f"no process of {word}"
        return found[0]

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Asks it to stop and waits; its exit status."""
        if self.process.poll() is None:
            self.note_children()
            if number is signal.SIGINT:
                os.killpg(self.process.pid, number)  # as Ctrl-C in a terminal does
            else:
                self.process.send_signal(number)
        return self.process.wait(STOP_TIMEOUT_S)

    def left_over(self) -> list[str]:
        """Processes of it that still run."""
        return [words(each) for each in self.seen.values() if runs(each)]


def run_stemcache(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end."""
    return subprocess.run(
        _command(arguments),
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
    )


def begin_up(data_dir: Path, *arguments: str) -> RunningUp:
    """Begins to start a system on free ports."""
    log = data_dir.with_name(f"{data_dir.name}.log")
    with log.open("w") as file:
        process = subprocess.Popen(
            _command(["up", "--data-dir", str(data_dir), "--port", "0", "--admin-port", "0", *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    return RunningUp(process, data_dir, log)


def start_up(data_dir: Path, *arguments: str) -> RunningUp:
    """Starts a system and waits until it says that it is up."""
    running = begin_up(data_dir, *arguments)
    process = running.process
    try:
        wait_until(lambda: "stops everything" in running.output() or process.poll() is not None, START_TIMEOUT_S)
        assert process.poll() is None, running.output()
    except BaseException:
        running.stop()
        raise
    running.note_children()
    return running


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Waits for something that happens in another process."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "services.cli", *arguments]


def words(process: psutil.Process) -> str:
    """Its command line; empty where it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
