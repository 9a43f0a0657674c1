"""The public traces, where they are: STEMCACHE_TRACES names their folder."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from cache_store.replay.trace import Trace
from cache_store.replay.trace_files import ReadOptions, read_trace

CONVERSATION = "mooncake_conversation_trace.jsonl.zst"
CLAUDE_CODE = "kv_cache_tester_claude_code.jsonl.zst"
AZURE_CODE = "AzureLLMInferenceTrace_code.csv.zst"


@cache
def public_trace(name: str) -> Trace:
    """Reads it once a process; skips the test where there is none."""
    folder = os.environ.get("STEMCACHE_TRACES")
    if not folder:
        pytest.skip("STEMCACHE_TRACES names no folder of public traces")
    return read_trace(Path(folder) / name, ReadOptions())
