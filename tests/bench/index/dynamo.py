"""Dynamo's RadixTree in a process and an environment of its own, asked for the same things."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.bench.index.changes import Tenants
from tests.bench.index.stored import Chain
from tests.bench.machine import NOT_RUN

PEER = Path(__file__).parents[1] / "peers" / "dynamo_tree.py"


class Dynamo:
    """The peer, or its absence."""

    def __init__(self, process: subprocess.Popen[str] | None) -> None:
        self._process = process
        self.version = NOT_RUN if process is None else str(self._ask({"what": "version"})["version"])

    @classmethod
    @contextmanager
    def start(cls, environment: Path) -> Iterator[Dynamo]:
        """Where `environment` is ready."""
        if not (environment / "ready").exists():
            yield cls(None)
            return
        command = [str(environment.absolute() / "bin" / "python"), str(PEER)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield cls(process)
            finally:
                _pipe(process.stdin).close()
                process.wait(30)

    def lookups(
        self, chains: Sequence[Chain], num_workers: int, num_blocks: int, num_rounds: int
    ) -> Mapping[str, float | None]:
        """Median microseconds by chain; None where it is not run."""
        if self._process is None:
            return {chain.name: None for chain in chains}
        told = [{"name": each.name, "num_blocks": each.num_blocks, "depths": each.depths} for each in chains]
        question = {"what": "lookups", "chains": told, "workers": num_workers, "blocks": num_blocks}
        answer = self._ask(question | {"rounds": num_rounds})
        return {chain.name: float(answer[chain.name]) for chain in chains}

    def changes(self, tenants: Tenants, num_updates: int) -> dict[str, float]:
        """Figures by name; none where it is not run. It knows no tenants: their prefixes are roots of one tree."""
        if self._process is None:
            return {}
        sets = tenants.num_tenants * tenants.num_partitions
        question = {"what": "changes", "prefixes": sets, "per_set": tenants.per_set, "workers": tenants.num_workers}
        return {name: float(value) for name, value in self._ask(question | {"updates": num_updates}).items()}

    def _ask(self, question: Mapping[str, object]) -> dict[str, float]:
        assert self._process is not None
        stdin = _pipe(self._process.stdin)
        stdin.write(json.dumps(question) + "\n")
        stdin.flush()
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise RuntimeError("the peer has ended; its reason stands above")
        answer: dict[str, float] = json.loads(line)
        return answer


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
