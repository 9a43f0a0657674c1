"""Sends the demo's requests and keeps what came of each. Knows the client only."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from services.client import (
    CacheMode,
    Chat,
    Delta,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Route,
    Sampling,
    StemcacheClient,
    Usage,
)

MAX_TOKENS = 32
_BYPASS_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as its caller saw it."""

    label: str
    ttft_s: float
    """From the call to the first token, at the client."""
    usage: Usage
    route: Route
    token_ids: tuple[int, ...]
    text: str


def ask(client: StemcacheClient, label: str, chat: Chat, mode: CacheMode = CacheMode.READ_WRITE) -> Answer:
    """Streams one greedy answer. Raises ApiError."""
    request = GenerationRequest(chat, Sampling(temperature=0.0, max_tokens=MAX_TOKENS), cache_mode=mode)
    begin_s, ttft_s = time.monotonic(), 0.0
    route, usage = Route("", degraded=False, attempts=0), Usage(0, 0, 0, 0)
    token_ids: list[int] = []
    texts: list[str] = []
    for event in client.stream(request):
        match event:
            case GenerationStarted():
                route = event.route
            case Delta():
                ttft_s = ttft_s or time.monotonic() - begin_s
                token_ids.extend(event.token_ids)
                texts.append(event.text)
            case GenerationFinished():
                usage = event.usage
    return Answer(label, ttft_s, usage, route, tuple(token_ids), "".join(texts))


def ask_uncached_everywhere(client: StemcacheClient, chat: Chat, num_workers: int) -> dict[str, Answer]:
    """The same request past the cache, once on each worker: two at a time, so that load spreads them."""
    answers: dict[str, Answer] = {}
    with ThreadPoolExecutor(max_workers=num_workers) as pool:
        for _ in range(_BYPASS_ROUNDS):
            futures = [pool.submit(ask, client, "uncached", chat, CacheMode.BYPASS) for _ in range(num_workers)]
            for future in futures:
                answer = future.result()
                answers[answer.route.worker_id] = answer
            if len(answers) == num_workers:
                break
    return answers
