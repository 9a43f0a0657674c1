"""`stemcache drain` on a whole system: the worker is gone, is not started again, and everything ends as it should."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.running_up import runs, start_up, wait_until, words

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

COMEBACK_S = 10.0
"""In which a worker that failed would have been started again."""


def test_a_worker_that_was_told_to_leave_stays_away(tmp_path: Path) -> None:
    up = start_up(tmp_path / "data", "--runner", "digest", "--workers", "2")
    try:
        workers = [each for each in up.note_children().values() if "WorkerActor" in words(each)]
        assert len(workers) == 2
        drained = up.run("drain", "worker-0", "--grace", "5s")
        assert drained.returncode == 0, drained.stderr
        assert "worker-0 has left" in drained.stdout
        wait_until(lambda: sum(map(runs, workers)) == 1)
        wait_until(lambda: "worker-0: left (drained)" in up.output())
        time.sleep(COMEBACK_S)
        assert not [
            each for each in up.note_children().values() if each not in workers and "WorkerActor" in words(each)
        ]
        status = up.run("status").stdout
        assert "worker-1" in status
        assert "worker-0" not in status
        alone = up.run("drain", "worker-1")
        assert alone.returncode != 0
        assert "start another worker" in alone.stderr
    finally:
        assert up.stop() == 0, up.output()
    assert up.left_over() == []
