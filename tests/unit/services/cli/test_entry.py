from __future__ import annotations

import signal
import subprocess
import sys
import time

SLOW_IMPORT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal; a job in the background may ignore it
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "services.cli.main":
            print("loading", flush=True)
            time.sleep(30)
sys.meta_path.insert(0, Slow())
from services.cli.__main__ import main
sys.exit(main())
"""


def test_ctrl_c_while_the_commands_load_ends_quietly() -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW_IMPORT], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"loading\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors == b""
