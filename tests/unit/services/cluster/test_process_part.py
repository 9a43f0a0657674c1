"""A supervised child process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.cluster.parts import Health
from services.cluster.process_part import ProcessPart

SLEEP = "import time; time.sleep(60)"
MakePart = Callable[[str], ProcessPart]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakePart]:
    made: list[ProcessPart] = []

    def part(code: str) -> ProcessPart:
        ready = tmp_path / "ready"
        made.append(
            ProcessPart("child", [sys.executable, "-c", code], {"MARK": "seen"}, tmp_path / "log", ready.exists)
        )
        return made[-1]

    yield part
    for each in made:
        each.stop()


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ready_when_it_says_so(make: MakePart, tmp_path: Path) -> None:
    part = make(SLEEP)
    part.start()
    assert part.condition().health is Health.STARTING
    (tmp_path / "ready").touch()
    assert part.condition().health is Health.READY


def test_an_ended_process_has_failed_and_its_last_line_tells_why(make: MakePart) -> None:
    part = make("import sys; print('first', flush=True); sys.exit('the port is taken')")
    part.start()
    _wait_for(lambda: part.condition().health is Health.FAILED)
    reason = part.condition().reason
    assert "exit code 1" in reason
    assert reason.endswith("the port is taken")


def test_a_killed_process_has_failed(make: MakePart) -> None:
    part = make(SLEEP)
    part.start()
    assert part.pid is not None
    os.kill(part.pid, signal.SIGKILL)
    _wait_for(lambda: part.condition().health is Health.FAILED)
    assert "signal 9" in part.condition().reason


def test_it_gets_the_given_environment_only(make: MakePart, tmp_path: Path) -> None:
    part = make("import os; print(sorted(os.environ))")
    part.start()
    _wait_for(lambda: part.condition().health is Health.FAILED)
    names = (tmp_path / "log").read_text()
    assert "MARK" in names
    assert "HOME" not in names


def test_the_log_is_private(make: MakePart, tmp_path: Path) -> None:
    make(SLEEP).start()
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_it_can_be_started_again(make: MakePart) -> None:
    part = make(SLEEP)
    part.start()
    first = part.pid
    part.stop()
    part.start()
    assert part.pid != first
    assert part.condition().health is Health.STARTING


def test_stop_ends_it_and_can_be_repeated(make: MakePart) -> None:
    part = make(SLEEP)
    part.stop()
    part.start()
    part.stop()
    part.stop()
    assert part.pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(part.pid, 0)


PARENT = """
import os, signal, sys, time
from pathlib import Path
from services.cluster.process_part import ProcessPart
part = ProcessPart("child", [sys.executable, "-c", "import time; time.sleep(60)"], {}, Path(sys.argv[1]), lambda: True)
part.start()
time.sleep(0.5)
print(part.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.run([sys.executable, "-c", PARENT, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    child = Path(f"/proc/{int(parent.stdout)}/status")

    def ended() -> bool:
        return not child.exists() or "State:\tZ" in child.read_text()

    _wait_for(ended)
