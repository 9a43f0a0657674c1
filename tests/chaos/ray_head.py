"""A Ray cluster of one node, started as an operator does it, whose GCS keeps its tables in Valkey and can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from services.cluster.ray_reaper import members
from services.cluster.ray_session import RaySession
from services.cluster.router_part import free_port
from tests.chaos.processes import ROOT

RAY = Path(sys.executable).parent / "ray"
START_TIMEOUT_S = 120.0
RECONNECT_S = 600
"""How long Ray's processes wait for a GCS that is away before they end themselves; a minute unless they are told."""


class RayHead:
    """One node. `close` ends all of it."""

    def __init__(self, redis_address: str, user: str, password: str) -> None:
        self._session = RaySession()
        self.folder = self._session.folder
        self._port = free_port("127.0.0.1")
        self._redis = (user, password)
        token = self.folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self._environment = {
            "PATH": f"{RAY.parent}:{os.environ['PATH']}", "HOME": str(self.folder),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}",
            "RAY_REDIS_ADDRESS": redis_address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S),
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }  # fmt: skip
        self._gcs_command: list[str] = []
        self._gcs_environment: Mapping[str, str] = {}
        self._gcs: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """For drivers."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Raises CalledProcessError."""
        arguments = [
            "start", "--head", f"--port={self._port}", "--node-ip-address=127.0.0.1", "--num-cpus=4",
            "--object-store-memory=80000000", "--include-dashboard=false", f"--temp-dir={self.folder}",
            "--disable-usage-stats", f"--redis-username={self._redis[0]}", f"--redis-password={self._redis[1]}",
        ]  # fmt: skip
        started = subprocess.run(
            [str(RAY), *arguments], env=self._environment, capture_output=True, text=True, timeout=START_TIMEOUT_S
        )
        assert started.returncode == 0, started.stdout[-2_000:] + started.stderr[-2_000:]

    async def launch(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the launcher; what it says of the workers."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.chaos.ray_launcher", cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE,
            env=self._environment,
        )  # fmt: skip
        out, error = await process.communicate(json.dumps({"address": self.address, **told}).encode())
        assert process.returncode == 0, error.decode()[-3_000:]
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def kill_gcs(self) -> None:
        """Kills it, and remembers how it was started."""
        gcs = next(each for each in self.processes() if "gcs_server" in " ".join(each.cmdline()[:1]))
        self._gcs_command, self._gcs_environment = gcs.cmdline(), gcs.environ()
        gcs.send_signal(signal.SIGKILL)
        gcs.wait(10)

    def restart_gcs(self) -> None:
        """Starts it again as it was; it reads its tables from Valkey."""
        with (self.folder / "gcs-again.log").open("wb") as log:
            self._gcs = subprocess.Popen(
                self._gcs_command, env=dict(self._gcs_environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def has_gcs(self) -> bool:
        """Whether one runs."""
        return any("gcs_server" in " ".join(each.cmdline()[:1]) for each in self.processes())

    def processes(self) -> list[psutil.Process]:
        """All of the session."""
        found = []
        for pid in members(self.folder, os.getpid()):
            try:
                found.append(psutil.Process(pid))
            except psutil.NoSuchProcess:
                continue
        return found

    def worker_pids(self) -> list[int]:
        """Of processes that are workers of ours by their title."""
        pids = []
        for process in self.processes():
            try:
                if "WorkerActor" in " ".join(process.cmdline()):
                    pids.append(process.pid)
            except psutil.NoSuchProcess:
                continue
        return sorted(pids)

    def close(self) -> None:
        """Ends everything and waits."""
        self._session.close()
        if self._gcs is not None:
            self._gcs.wait(10)
        deadline_s = time.monotonic() + 10
        while members(self.folder, os.getpid()):
            assert time.monotonic() < deadline_s, f"processes of {self.folder} still run"
            time.sleep(0.1)
