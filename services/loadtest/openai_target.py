"""A tenant's way to a server with OpenAI's /v1/completions: server-sent events over aiohttp, one session per tenant.

Such servers tell usage with the last event (`stream_options`), cached tokens where they count them, and neither worker
nor times. Some send the token ids of each event; of others one token an event is assumed until the usage says more.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from cache_store.errors import StemcacheError
from cache_store.tokens import PackedTokens, pack, unpack
from services.loadtest.records import OK
from services.loadtest.targets import Answer, Call, Tokenizer

MAX_ERROR = 300
_DATA, _DONE = b"data:", b"[DONE]"
_MAX_LINE = 1 << 20
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,48}", re.ASCII)


class OpenAiTarget:
    """Sends as one tenant. Belongs to the event loop that made it; `close` it."""

    def __init__(self, url: str, api_key: str, model: str, tokenizer: Tokenizer, timeout_s: float) -> None:
        self._url = f"{url}/v1/completions"
        self._model = model
        self._tokenizer = tokenizer
        self._session = session(api_key, timeout_s)
        self._as_text = False

    def sending_text(self) -> OpenAiTarget:
        """The same, for a server that takes no token ids."""
        self._as_text = True
        return self

    async def close(self) -> None:
        """Closes its connections."""
        await self._session.close()

    async def send(self, call: Call, answer: Answer) -> None:
        """Streams one completion: greedy, of `max_tokens` where the server knows `ignore_eos`."""
        texts: list[str] = []
        try:
            body = await self._body(call)
            async with self._session.post(self._url, json=body) as response:
                if response.status != 200:
                    answer.status = f"HTTP_{response.status}"
                    said = await response.text()
                    answer.error, answer.words = _code(said), said[:MAX_ERROR]
                    return
                is_done = await self._read(response.content, answer, texts)
            if not answer.tokens and texts:
                answer.tokens.append(pack(await self._tokenizer.encode("".join(texts))))
        except TimeoutError:
            answer.status, answer.error = "DEADLINE_EXCEEDED", "no answer in time"
        except aiohttp.ClientError as error:
            answer.status, answer.error = "UNAVAILABLE", str(error)[:MAX_ERROR]
        except (ValueError, TypeError, AttributeError, StemcacheError) as error:
            answer.status, answer.error = "INTERNAL", f"unreadable: {error}"[:MAX_ERROR]
        else:
            answer.status = OK if is_done else "DATA_LOSS"
            answer.completion_tokens = answer.completion_tokens or answer.num_tokens or sum(answer.counts)

    async def _body(self, call: Call) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": await self._tokenizer.decode(call.prompt) if self._as_text else unpack(call.prompt),
            "max_tokens": call.max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "return_token_ids": True,
        }

    async def _read(self, content: aiohttp.StreamReader, answer: Answer, texts: list[str]) -> bool:
        """All events; whether the last one came."""
        async for line in content:
            if not line.startswith(_DATA):
                continue
            data = line[len(_DATA) :].strip()
            if data == _DONE:
                return True
            _take(json.loads(data), answer, texts)
        return False


def session(api_key: str, timeout_s: float) -> aiohttp.ClientSession:
    """Of as many connections as there are requests."""
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        connector=aiohttp.TCPConnector(limit=0),
        read_bufsize=_MAX_LINE,
    )


def _take(event: Mapping[str, Any], answer: Answer, texts: list[str]) -> None:
    """One event."""
    choices = event.get("choices") or ()
    if choices:
        answer.ended_s = time.perf_counter()  # usage may come later: it is no part of the answer
    for choice in choices:
        text, ids = choice.get("text") or "", choice.get("token_ids") or ()
        if text or ids:
            answer.arrivals_s.append(time.perf_counter())
            answer.counts.append(len(ids) or 1)
            texts.append(text)
            if ids:
                answer.tokens.append(pack(ids))
    if usage := event.get("usage"):
        answer.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        answer.completion_tokens = int(usage.get("completion_tokens") or 0)
        answer.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def _code(said: str) -> str:
    """Type and code of an error: of all that a server says of it they are no words of the prompt."""
    try:
        document = json.loads(said)
    except (ValueError, RecursionError):
        return ""
    if isinstance(document, dict) and isinstance(document.get("error"), dict):
        document = document["error"]
    found = (document.get("type"), document.get("code")) if isinstance(document, dict) else ()
    return " ".join(str(each) for each in found if _CODE.fullmatch(str(each)) and each is not None)


async def fetched(client: aiohttp.ClientSession, url: str, body: Mapping[str, Any] | None) -> Any:
    """The JSON that a GET, or a POST of `body`, answers. Raises aiohttp.ClientError, TimeoutError or ValueError."""
    async with client.request("GET" if body is None else "POST", url, json=body) as response:
        response.raise_for_status()
        return await response.json(content_type=None)


class ServerTokenizer:
    """The server's own: /tokenize and /detokenize, as vLLM and llama.cpp offer them."""

    def __init__(self, url: str, model: str, client: aiohttp.ClientSession) -> None:
        self._url = url
        self._model = model
        self._client = client

    async def encode(self, text: str) -> tuple[int, ...]:
        """Raises what `fetched` raises."""
        body = {"model": self._model, "prompt": text, "content": text, "add_special_tokens": False}
        found = await fetched(self._client, f"{self._url}/tokenize", body)
        return tuple(map(int, found["tokens"]))

    async def decode(self, tokens: PackedTokens) -> str:
        """Likewise."""
        found = await fetched(self._client, f"{self._url}/detokenize", {"model": self._model, "tokens": unpack(tokens)})
        return str(found.get("prompt", found.get("content", "")))


async def answers(client: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> bool:
    """Whether a method is there."""
    try:
        await fetched(client, url, body)
    except (TimeoutError, aiohttp.ClientError, ValueError):
        return False
    return True
