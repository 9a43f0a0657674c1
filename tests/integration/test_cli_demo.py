"""`make demo`'s program on the real model: it shows what it claims, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.running_up import RunningUp

pytestmark = pytest.mark.slow

TIMEOUT_S = 280.0
NUM_CLAIMS = 10


def test_the_demo_proves_its_claims_and_ends_clean(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.demo"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    demo = RunningUp(process, tmp_path, log)
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                demo.note_children()
            except psutil.NoSuchProcess:  # it ended just now
                break
            time.sleep(1.0)
        assert process.wait(5.0) == 0, demo.output()
    finally:
        demo.stop()
    said = demo.output()
    lines = said.splitlines()
    assert sum(line.startswith("ok  ") for line in lines) == NUM_CLAIMS, said
    assert "FAIL" not in said
    for row in ("acme, first request (cold)", "acme, follow-up (warm)", "globex, the same prompt (cold)"):
        assert any(line.startswith(row) for line in lines), said
    assert "\x1b" not in said, "plain where there is no terminal"
    assert len(demo.seen) >= 5
    assert demo.left_over() == []
