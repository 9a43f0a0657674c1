"""llama.cpp as a side of the benchmark, by its own programs: `llama-bench`, and `llama-batched-bench` for a batch.

Every answer is a process of its own, which loads the model first and computes something small before it measures. Its
keys and values are in its default format, float16; the weights are float32. Its batch computes the own tokens of all
requests once, as a part of what they share, so that it has less to do than the others.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.bench.engine.sides import SideEndedError, peer_environment
from tests.bench.peers.answering import Answer, Question

_WARM_UP = 48
"""Tokens of a prompt that is not counted: it touches the weights first."""


class LlamaSide:
    """Answers by running a program of those that `infra/llama_peer.sh` has compiled in a folder."""

    def __init__(self, folder: Path, gguf: Path, threads: int, wait_policy: str, log: Path) -> None:
        self._folder = folder / "build" / "bin"
        self._common = ["-m", str(gguf), "-t", str(threads)]
        self._log = log
        self._environment = {**peer_environment(threads, wait_policy), "LD_LIBRARY_PATH": str(self._folder)}
        self.info: Answer = {
            "version": (folder / "ready").read_text().strip(),
            "threads": threads,
            "settings": "F32 GGUF, keys and values in float16, llama-bench and llama-batched-bench -pps",
            "rows": ["batch", "decode", "prefill"],
        }

    def ask(self, row: str, question: Question) -> Answer:
        return {"prefill": self._prefill, "decode": self._decode, "batch": self._batch}[row](question)

    def close(self) -> None:
        """There is nothing that runs."""

    def _prefill(self, question: Question) -> Answer:
        context, num_new = question["context"], question["num_new"]
        cold = self._bench("-p", f"{_WARM_UP},{context}", "-n", "0")
        warm = self._bench("-p", str(num_new), "-n", "0", "-d", str(context - num_new))
        return {"cold_s": cold, "warm_s": warm}

    def _decode(self, question: Question) -> Answer:
        num = question["num_decoded"]
        seconds = self._bench("-p", "0", "-n", str(num), "-d", str(question["context"] + question["num_skipped"]))
        return {"step_s": [seconds / num] * num}

    def _batch(self, question: Question) -> Answer:
        prompt, output, requests = question["shared"] + question["own"], question["output"], question["requests"]
        room = prompt + requests * (output + 1)
        shape = ["-npp", str(prompt), "-ntg", str(output), "-npl", str(requests), "-c", str(room), "-pps", "-kvu"]
        lines = self._run("llama-batched-bench", [*shape, "-tb", self._common[-1], "--output-format", "jsonl"])
        answer = json.loads(next(line for line in lines.splitlines() if line.startswith("{")))
        return {"cold_s": answer["t"], "warm_s": answer["t_tg"]}

    def _bench(self, *arguments: str) -> float:
        """Seconds of the last of the tests that the arguments ask for."""
        answer = json.loads(self._run("llama-bench", [*arguments, "-r", "1", "--no-warmup", "-o", "json"]))
        return float(answer[-1]["samples_ns"][0]) / 1e9

    def _run(self, program: str, arguments: list[str]) -> str:
        command = [str(self._folder / program), *self._common, *arguments]
        with self._log.open("ab") as errors:
            run = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=self._environment)
        if run.returncode:
            raise SideEndedError(f"{program} failed with {run.returncode}; {self._log} says why")
        return run.stdout
