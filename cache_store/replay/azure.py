"""Reads Azure's LLM inference traces: arrival, context tokens and generated tokens of each request, and no content.

Nothing is known to repeat, so each prompt is new: traffic that fills a cache and never hits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from cache_store.replay.lines import Line
from cache_store.replay.trace import Symbols, Trace, TraceRequest, ordered

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
NUM_COLUMNS = 3


def read(lines: Iterator[Line], block_tokens: int) -> Trace:
    """Reads all lines after the header."""
    symbols = Symbols()
    requests: list[TraceRequest] = []
    start_s: float | None = None
    for number, line in enumerate(lines):
        columns = line.text.strip().split(",")
        if len(columns) != NUM_COLUMNS:
            raise line.error(f"{HEADER} are needed, {len(columns)} columns were found")
        try:
            arrival_s = datetime.fromisoformat(columns[0][:26]).replace(tzinfo=UTC).timestamp()
            prompt_tokens, output_tokens = int(columns[1]), int(columns[2])
        except ValueError as error:
            raise line.error(f"no date and two whole numbers: {error}") from error
        if prompt_tokens < 0 or output_tokens < 0:
            raise line.error("numbers of tokens must be 0 or more")
        start_s = arrival_s if start_s is None else start_s
        blocks = symbols.fresh(-(-prompt_tokens // block_tokens))
        requests.append(TraceRequest(arrival_s - start_s, number, prompt_tokens, output_tokens, "", blocks))
    return ordered(requests, block_tokens)
