"""Dynamo's RadixTree, in an environment of its own: questions as JSON a line on standard input, answers likewise.

Needs no package but ai-dynamo-runtime. Every chain has hashes of its own; a block's two hashes are the same number.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dynamo._core import RadixTree  # type: ignore[import-not-found]  # of the peer's environment

CHAIN_BLOCKS = 512
"""Of other blocks, and of a batch of updates."""


class Tree:
    """A tree and the numbers that its events need."""

    def __init__(self) -> None:
        self.tree: Any = RadixTree()
        self._events = 0

    def store(self, worker: int, hashes: Sequence[int]) -> None:
        """A chain from the root."""
        blocks = [{"block_hash": each, "tokens_hash": each} for each in hashes]
        self.apply(worker, {"stored": {"parent_hash": None, "blocks": blocks}})

    def remove(self, worker: int, hashes: Sequence[int]) -> None:
        self.apply(worker, {"removed": {"block_hashes": list(hashes)}})

    def apply(self, worker: int, data: object) -> None:
        self.tree.apply_event(worker, self.event(data))

    def event(self, data: object) -> bytes:
        self._events += 1
        return json.dumps({"event_id": self._events, "data": data, "dp_rank": 0}).encode()


class Hashes:
    """Numbers that come once."""

    def __init__(self) -> None:
        self._next = 1

    def chain(self, num_blocks: int) -> list[int]:
        first, self._next = self._next, self._next + num_blocks
        return [number * 0x9E3779B97F4A7C15 % (1 << 63) for number in range(first, self._next)]


def lookups(question: dict[str, Any]) -> dict[str, float]:
    """Median microseconds of find_matches, by chain; the answers are checked."""
    tree, hashes = Tree(), Hashes()
    num_workers = question["workers"]
    chains = {chain["name"]: (hashes.chain(chain["num_blocks"]), chain["depths"]) for chain in question["chains"]}
    for worker in range(num_workers):
        for blocks, depths in chains.values():
            if depths[worker]:
                tree.store(worker, blocks[: depths[worker]])
        num_others = question["blocks"] // num_workers - sum(depths[worker] for _, depths in chains.values())
        for _ in range(max(0, num_others) // CHAIN_BLOCKS):
            tree.store(worker, hashes.chain(CHAIN_BLOCKS))
    times: dict[str, list[float]] = {name: [] for name in chains}
    for _ in range(question["rounds"]):
        for name, (blocks, depths) in chains.items():
            started_s = time.perf_counter()
            found = tree.tree.find_matches(blocks)
            times[name].append((time.perf_counter() - started_s) * 1e6)
            assert sorted(found.scores.values()) == sorted(depth for depth in depths if depth), name
    return {name: statistics.median(each) for name, each in times.items()}


def changes(question: dict[str, Any]) -> dict[str, float]:
    """Updates, memory, and the end of a worker."""
    hashes = Hashes()
    prefixes = [hashes.chain(question["per_set"]) for _ in range(question["prefixes"])]
    gc.collect()
    before = resident_bytes()
    tree = Tree()
    for worker in range(question["workers"]):
        for blocks in prefixes:
            tree.store(worker, blocks)
    num_blocks = question["workers"] * question["prefixes"] * question["per_set"]
    found = {"bytes_per_block": (resident_bytes() - before) / num_blocks}
    batches = [hashes.chain(CHAIN_BLOCKS) for _ in range(question["updates"])]
    for name, make in (("stored_us", stored), ("removed_us", removed)):
        events = [tree.event(make(blocks)) for blocks in batches]
        seconds = timed(lambda events=events: [tree.tree.apply_event(0, event) for event in events])
        found[name] = seconds * 1e6 / (len(batches) * CHAIN_BLOCKS)
    found["drop_ms"] = timed(lambda: tree.tree.remove_worker(question["workers"] - 1)) * 1e3
    return found


def stored(blocks: Sequence[int]) -> object:
    made = [{"block_hash": each, "tokens_hash": each} for each in blocks]
    return {"stored": {"parent_hash": None, "blocks": made}}


def removed(blocks: Sequence[int]) -> object:
    return {"removed": {"block_hashes": list(blocks)}}


def timed(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def answers() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        question = json.loads(line)
        match question["what"]:
            case "version":
                yield {"version": version("ai-dynamo-runtime")}
            case "lookups":
                yield lookups(question)
            case "changes":
                yield changes(question)


for answer in answers():
    print(json.dumps(answer), flush=True)
