"""Readers of traces, on small files written out here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard

from cache_store.errors import InvalidRequestError
from cache_store.replay.schedule import SessionSchedule
from cache_store.replay.trace import Trace
from cache_store.replay.trace_files import ReadOptions, read_trace
from cache_store.tokens import unpack

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 500, "input_length": 600, "output_length": 6, "hash_ids": [0, 3]},
    {"timestamp": 2500, "input_length": 1600, "output_length": 7, "hash_ids": [0, 1, 4, 5]},
    {"timestamp": 2500, "input_length": 400, "output_length": 8, "hash_ids": [0]},
]


def session(*requests: dict[str, object]) -> dict[str, object]:
    return {"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": list(requests)}


def turn(t: float, ids: list[int], stop: str = "tool_use") -> dict[str, object]:
    return {"t": t, "type": "n", "in": 64 * len(ids) + 3, "out": 9, "stop": stop, "hash_ids": ids}


def write(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(path: Path, block_tokens: int = 512, every_s: float = 10.0, cut_s: float = 1_000.0) -> Trace:
    return read_trace(path, ReadOptions(block_tokens, SessionSchedule(every_s, cut_s)))


def test_mooncake_requests_keep_their_ids_times_and_lengths(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "a.jsonl", MOONCAKE))
    assert [unpack(each.blocks) for each in trace.requests] == [each["hash_ids"] for each in MOONCAKE]
    assert [each.at_s for each in trace.requests] == [0.0, 0.5, 2.5, 2.5]
    assert (trace.requests[0].prompt_tokens, trace.requests[0].output_tokens) == (1100, 5)
    assert (trace.num_references, trace.num_unique_blocks(), trace.num_tokens) == (10, 6, 3700)
    assert trace.duration_s == 2.5


def test_mooncake_sessions_follow_the_deepest_common_block_and_end_with_their_last_request(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "a.jsonl", MOONCAKE))
    assert [each.session for each in trace.requests] == [0, 1, 0, 2]
    assert [each.ends_session for each in trace.requests] == [False, True, True, True]


def test_a_compressed_file_reads_like_a_plain_one(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.jsonl", MOONCAKE)
    packed = tmp_path / "a.jsonl.zst"
    data = plain.read_bytes()
    packed.write_bytes(zstandard.compress(data[:90]) + zstandard.compress(data[90:]))
    assert read(packed) == read(plain)


def test_sessions_start_one_after_the_other_and_are_cut(tmp_path: Path) -> None:
    lines = [session(turn(0, [1]), turn(30, [1]), turn(1_000, [1])), session(turn(0, [1]), turn(5, [1]))]
    trace = read(write(tmp_path / "a.jsonl", lines))
    assert [(each.at_s, each.session) for each in trace.requests] == [(0, 0), (10, 1), (15, 1), (30, 0)]
    assert [each.ends_session for each in trace.requests] == [False, False, True, True]
    assert trace.requests[0].stop == "tool_use"


def test_hashes_are_grouped_within_their_session_only(tmp_path: Path) -> None:
    long = list(range(20))
    lines = [session(turn(0, long[:16]), turn(1, long), turn(2, [*long[:8], 99, *long[9:16]])), session(turn(0, long))]
    trace = read(write(tmp_path / "a.jsonl", lines), every_s=100)
    blocks = [unpack(each.blocks) for each in trace.requests]
    assert blocks[0] == blocks[1][:2]
    assert len(blocks[1]) == 3, "the last block is a partial one"
    assert blocks[2][0] == blocks[0][0]
    assert blocks[2][1] != blocks[0][1]
    assert set(blocks[3]).isdisjoint(blocks[0] + blocks[1] + blocks[2])


def test_an_equal_group_below_another_parent_is_another_block(tmp_path: Path) -> None:
    lines = [session(turn(0, [1, 2, 3, 4]), turn(1, [9, 2, 3, 4]))]
    first, second = (
        unpack(each.blocks) for each in read(write(tmp_path / "a.jsonl", lines), block_tokens=128).requests
    )
    assert set(first).isdisjoint(second)


def test_requests_of_subagents_lie_within_their_session(tmp_path: Path) -> None:
    agent = {"t": 20, "type": "subagent", "requests": [turn(0, [7]), turn(4, [7, 8])]}
    trace = read(write(tmp_path / "a.jsonl", [session(turn(0, [1]), agent, turn(22, [1, 2]))]))
    assert [each.at_s for each in trace.requests] == [0, 20, 22, 24]
    assert {each.session for each in trace.requests} == {0}


def test_azure_prompts_are_all_new(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,513,10\n2023-11-16 18:17:05,1,2\n"
    )
    trace = read(path)
    assert [each.num_blocks for each in trace.requests] == [2, 1]
    assert trace.num_unique_blocks() == 3
    assert trace.requests[1].at_s == pytest.approx(1.02004)


BAD_LINES = {
    '{"timestamp": 1, "hash_ids": [0]': "no JSON",
    '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [0, "x"]}': 'has "x"',
    '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [0, true]}': "has true",
    '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [-1]}': "within 0",
    '{"timestamp": 1, "input_length": 1, "output_length": 1}': "hash_ids must be a list",
    '{"timestamp": 1, "input_length": -1, "output_length": 1, "hash_ids": [0]}': "input_length must be a number",
    '{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": [0]}': "timestamp must be a number",
    "[1]": "a JSON object is needed, not list",
}


@pytest.mark.parametrize("bad", BAD_LINES)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, bad: str) -> None:
    path = write(tmp_path / "a.jsonl", MOONCAKE[:1])
    path.write_text(f"{path.read_text()}\n{bad}\n")
    with pytest.raises(InvalidRequestError, match=r"a\.jsonl:3: ") as refused:
        read(path)
    assert BAD_LINES[bad] in str(refused.value)


@pytest.mark.parametrize(
    ("text", "reason"), [("a,b\n", "unknown format"), ('{"x": 1}\n', "unknown format"), ("", "empty")]
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match="unknown format" if text.strip() else "empty"):
        read(path)


def test_a_bad_request_within_a_session_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [session(turn(0, [1])), session({"t": 0, "type": "n", "in": 3})])
    with pytest.raises(InvalidRequestError, match=r"a\.jsonl:2: out must be a number"):
        read(path)


def test_broken_compression_and_text_are_told_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", MOONCAKE)
    packed = tmp_path / "a.jsonl.zst"
    packed.write_bytes(b"no zstd at all")
    with pytest.raises(InvalidRequestError, match="cannot be decompressed"):
        read(packed)
    path.write_bytes(path.read_bytes() + b"\xff\xfe\n")
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        read(path)


@pytest.mark.parametrize("block_tokens", [100, 700])
def test_blocks_that_do_not_fit_are_refused(tmp_path: Path, block_tokens: int) -> None:
    with pytest.raises(InvalidRequestError, match="no multiple"):
        read(write(tmp_path / "a.jsonl", MOONCAKE), block_tokens)
    with pytest.raises(InvalidRequestError, match="no multiple"):
        read(write(tmp_path / "b.jsonl", [session(turn(0, [1]))]), block_tokens)


def test_a_rate_factor_and_a_choice_of_sessions(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "a.jsonl", MOONCAKE))
    assert [each.at_s for each in trace.faster(2).requests] == [0.0, 0.25, 1.25, 1.25]
    assert [each.session for each in trace.select(lambda session: session == 0).requests] == [0, 0]
    with pytest.raises(InvalidRequestError, match="above 0"):
        trace.faster(0)
