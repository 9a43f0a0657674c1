"""The sides of the benchmark: ours, vLLM and transformers as processes that answer, llama.cpp by its own programs.

Each has its own process and threads; one is asked at a time. What a side logs goes to a file of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from tests.bench.peers.answering import Answer, Question

ROOT = Path(__file__).parents[3]
PEERS = Path(__file__).parents[1] / "peers"
NOT_RUN = "not run"


class Side(Protocol):
    """Something that is measured."""

    @property
    def info(self) -> Answer:
        """Version, threads, settings, and the rows that it can be asked for."""
        ...

    def ask(self, row: str, question: Question) -> Answer:
        """Measures once."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


@dataclass(frozen=True, slots=True)
class Command:
    """How a side is started."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


class SideEndedError(Exception):
    """A side failed; says where its log is."""


class ProcessSide:
    """A process that answers questions. Raises SideEndedError where it ends."""

    def __init__(self, name: str, command: Command, log: Path) -> None:
        self._name = name
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                list(command.arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=dict(command.environment),
                cwd=ROOT,
            )
        self.info = self._read()

    def ask(self, row: str, question: Question) -> Answer:
        stdin = _open(self._process.stdin)
        stdin.write(json.dumps([row, question]) + "\n")
        stdin.flush()
        return self._read()

    def close(self) -> None:
        _open(self._process.stdin).close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _read(self) -> Answer:
        line = _open(self._process.stdout).readline()
        if not line:
            raise SideEndedError(f"{self._name} ended; {self._log} says why")
        answer: Answer = json.loads(line)
        return answer


def ours_command(folder: Path, threads: int, token_budget: int) -> Command:
    """As `worker/actor.py` sets the environment of a worker."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "proto"))),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    module = "tests.bench.engine.ours"
    return Command((sys.executable, "-m", module, str(folder), str(threads), str(token_budget)), environment)


def transformers_command(folder: Path, threads: int, wait_policy: str) -> Command:
    """In our own environment."""
    script = str(PEERS / "transformers_engine.py")
    return Command((sys.executable, script, str(folder), str(threads)), peer_environment(threads, wait_policy))


def vllm_command(python: Path, folder: Path, threads: int, wait_policy: str, mode: str, block_size: int) -> Command:
    """In an environment of its own."""
    script = str(PEERS / "vllm_engine.py")
    arguments = (str(python), script, str(folder), str(threads), str(block_size), mode)
    return Command(arguments, peer_environment(threads, wait_policy))


def peer_environment(threads: int, wait_policy: str) -> dict[str, str]:
    """Ours without what is ours, with the threads of a side."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_WAIT_POLICY")}
    environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return environment | ({"OMP_WAIT_POLICY": wait_policy.upper()} if wait_policy != "default" else {})


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
