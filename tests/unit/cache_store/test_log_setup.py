from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import structlog
from cache_store.log_setup import log_as_json

def fail(prompt):
    raise ValueError("it broke")

log_as_json()
try:
    fail("the secret prompt")
except ValueError as error:
    structlog.get_logger().error("failed", exc_info=error)
"""


def test_tracebacks_show_no_values() -> None:
    out = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert '"event": "failed"' in out
    assert "it broke" in out
    assert "the secret prompt" not in out
