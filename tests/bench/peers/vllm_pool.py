"""vLLM's KV cache manager doing what `tests/bench/pool.py` does, in an environment of its own. Imports nothing of ours.

Speaks lines: reads the name of a case, does it once, writes its times in microseconds as JSON.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

BLOCK = 16


class Manager:
    def __init__(self, num_blocks: int, events: bool) -> None:
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=3, head_size=64, dtype=torch.float32)
        config = KVCacheConfig(num_blocks + 1, [], [KVCacheGroupSpec(["layer"], spec)])
        self._manager = KVCacheManager(config, 1 << 20, BLOCK, BLOCK, enable_kv_cache_events=events)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._next = 0

    def request(self, first_token: int, num_tokens: int) -> Request:
        tokens = list(range(first_token, first_token + num_tokens))
        self._next += 1
        return Request(str(self._next), tokens, SamplingParams(max_tokens=1), None, block_hasher=self._hasher)

    def run(self, request: Request) -> dict[str, float]:
        start = time.perf_counter()
        blocks, num_computed, _ = self._manager.get_computed_blocks(request)
        matched = time.perf_counter()
        granted = self._manager.allocate_slots(request, request.num_tokens - num_computed, num_computed, blocks)
        allocated = time.perf_counter()
        assert granted is not None
        self._manager.free(request)
        freed = time.perf_counter()
        self._manager.take_events()
        drained = time.perf_counter()
        return {
            "match": 1e6 * (matched - start),
            "allocate": 1e6 * (allocated - matched),
            "release": 1e6 * (freed - allocated),
            "events": 1e6 * (drained - freed),
            "cached_tokens": num_computed,
        }


def main() -> None:
    num_blocks, num_tokens = int(sys.argv[1]), int(sys.argv[2])
    init_none_hash(sha256)
    managers = {"events on": Manager(num_blocks, True), "events off": Manager(num_blocks, False)}
    num_fill = 2 * num_blocks * BLOCK // num_tokens  # twice as much as fits: every new block evicts one
    fresh = dict.fromkeys(managers, num_fill)
    for manager in managers.values():
        for number in range(num_fill + 1):
            manager.run(manager.request(number * num_tokens, num_tokens))
    print("ready", flush=True)
    for line in sys.stdin:
        kind, name = line.rstrip("\n").split("|")
        manager = managers[name]
        if kind == "evict":
            fresh[name] += 1
        request = manager.request(fresh[name] * num_tokens, num_tokens)
        print(json.dumps(manager.run(request)), flush=True)


if __name__ == "__main__":
    main()
