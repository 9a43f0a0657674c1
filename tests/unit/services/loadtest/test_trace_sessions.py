"""Traces as workloads: stable blocks, their own times, cut to fit the model; a generated one is read back."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from cache_store.errors import InvalidRequestError
from cache_store.tokens import common_prefix, count
from services.cli.main import main
from services.loadtest.sessions import Session
from services.loadtest.token_source import TokenSource
from services.loadtest.trace_sessions import of_trace, trace_workload
from services.loadtest.workloads import ModelRoom, WorkloadKind, WorkloadSpec
from tests.support.public_traces import AZURE_CODE, CLAUDE_CODE, CONVERSATION, public_trace

ROOM = ModelRoom(100_000, 0)
LINES = [
    {"timestamp": 5_000, "input_length": 1_500, "output_length": 7, "hash_ids": [1, 2, 3]},
    {"timestamp": 6_000, "input_length": 1_024, "output_length": 9, "hash_ids": [1, 2]},
    {"timestamp": 9_000, "input_length": 600, "output_length": 3, "hash_ids": [4, 5]},
]


def trace_file(folder: Path) -> str:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return str(path)


def read(path: str, room: ModelRoom = ROOM, seed: int = 0, **change: object) -> list[Session]:
    spec = WorkloadSpec(WorkloadKind.TRACE, trace=path, **change)  # type: ignore[arg-type]
    return list(trace_workload(spec, TokenSource(range(100), seed, "a"), room).sessions)


def prompt(session: Session) -> bytes:
    return b"".join(session.turns[0].parts)


def test_lengths_times_and_shared_prefixes_are_the_traces(tmp_path: Path) -> None:
    sessions = read(trace_file(tmp_path))
    assert [each.at_s for each in sessions] == [0.0, 1.0, 4.0]
    assert [count(prompt(each)) for each in sessions] == [1_500, 1_024, 600]
    assert [each.turns[0].max_tokens for each in sessions] == [7, 9, 3]
    assert common_prefix(prompt(sessions[0]), prompt(sessions[1])) == 1_024
    assert common_prefix(prompt(sessions[0]), prompt(sessions[2])) < 16


def test_the_same_seed_makes_the_same_blocks(tmp_path: Path) -> None:
    path = trace_file(tmp_path)
    assert read(path) == read(path)
    assert prompt(read(path)[0]) != prompt(read(path, seed=1)[0])


def test_times_and_lengths_are_scaled(tmp_path: Path) -> None:
    sessions = read(trace_file(tmp_path), time_scale=0.5, trace_block_tokens=16)
    assert [each.at_s for each in sessions] == [0.0, 0.5, 2.0]
    assert [count(prompt(each)) for each in sessions] == [47, 32, 19]


def test_what_the_model_does_not_take_is_cut_at_its_end(tmp_path: Path) -> None:
    spec = WorkloadSpec(WorkloadKind.TRACE, trace=trace_file(tmp_path))
    workload = trace_workload(spec, TokenSource(range(100), 0, "a"), ModelRoom(1_200, 0))
    sessions = list(workload.sessions)
    assert [count(prompt(each)) for each in sessions] == [1_193, 1_024, 600]
    assert common_prefix(prompt(sessions[0]), prompt(sessions[1])) == 1_024
    assert "1 of 3 requests" in workload.notes[0]


@pytest.mark.parametrize(("path", "told"), [("", "--trace PATH"), ("/nowhere.jsonl", "cannot be read")])
def test_a_trace_that_is_not_there_is_refused(path: str, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        read(path)


@pytest.mark.parametrize("name", [CONVERSATION, AZURE_CODE])
def test_public_traces_become_requests(name: str) -> None:
    spec = WorkloadSpec(WorkloadKind.TRACE, trace=name, trace_block_tokens=16)
    workload = of_trace(public_trace(name), spec, TokenSource(range(100), 0, "a"), ModelRoom(8_192, 0))
    sessions = list(islice(workload.sessions, 200))
    assert all(1 <= count(prompt(each)) < 8_192 for each in sessions)
    assert [each.at_s for each in sessions] == sorted(each.at_s or 0.0 for each in sessions)


@pytest.mark.nightly
def test_sessions_of_agents_become_requests() -> None:
    spec = WorkloadSpec(WorkloadKind.TRACE, trace=CLAUDE_CODE, trace_block_tokens=16)
    workload = of_trace(public_trace(CLAUDE_CODE), spec, TokenSource(range(100), 0, "a"), ModelRoom(8_192, 0))
    assert len(list(islice(workload.sessions, 200))) == 200


@pytest.mark.parametrize("workload", ["prefix-repetition", "conversation"])
def test_a_generated_workload_is_a_trace(tmp_path: Path, workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made.jsonl"
    flags = ["--workload", workload, "--num-prompts", "40", "--num-prefixes", "2", "--prefix-len", "70"]
    assert main(["loadtest", "gen", str(path), *flags]) == 0
    sessions = read(str(path))
    assert len(sessions) == 40
    assert [each.at_s for each in sessions] == sorted(each.at_s or 0.0 for each in sessions)
    shared = [common_prefix(prompt(sessions[0]), prompt(each)) for each in sessions[1:]]
    assert max(shared) >= 64
    assert main(["replay", str(path), "--block-tokens", "16", "--capacity", "50%"]) == 0
    assert main(["loadtest", "gen", str(path), *flags]) == 1
    assert "is there already" in capsys.readouterr().err
