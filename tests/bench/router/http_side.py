"""Ways that speak HTTP: straight to a worker that does no work, and over a router in front of it.

Prompts are as long as the others' at four characters a token. Connections are kept and used again. Answers come in one
piece: a stream's small pieces would measure how long a socket holds them back.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import string
from asyncio import StreamReader, StreamWriter

from tests.bench.router.processes import Listening
from tests.bench.router.sides import DEADLINE_S, Side

TOKEN_CHARS = 4
_LENGTH = b"\r\ncontent-length:"


class HttpError(Exception):
    """An answer that is none."""


class HttpCalls:
    """Calls of `/generate` at one address."""

    def __init__(self, address: str, num_tokens: int, num_prompts: int) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._idle: list[tuple[StreamReader, StreamWriter]] = []
        self._requests = itertools.cycle([self._request(num_tokens, number) for number in range(num_prompts)])

    async def call(self) -> int:
        """One prompt and its answer. Nothing is cached where nothing is computed: 0 tokens. Raises HttpError."""
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(self._host, self._port)
            writer.write(next(self._requests))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            status, length = head.split(b" ", 2)[1], head.find(_LENGTH)
            if status != b"200" or length < 0:
                writer.close()
                raise HttpError(f"/generate answers {status.decode()}")
            await reader.readexactly(int(head[length + len(_LENGTH) :].split(b"\r\n", 1)[0]))
        self._idle.append((reader, writer))
        return 0

    def close(self) -> None:
        """Ends its connections."""
        for _, writer in self._idle:
            writer.close()

    def _request(self, num_tokens: int, number: int) -> bytes:
        letters = random.Random(number).choices(string.ascii_lowercase + " ", k=num_tokens * TOKEN_CHARS)
        asked = {"text": "".join(letters), "sampling_params": {"max_new_tokens": 1}, "stream": False}
        body = json.dumps(asked).encode()
        head = f"POST /generate HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def http_side(name: str, calls: HttpCalls, between: Listening | None) -> Side:
    """A way over HTTP."""
    return Side(name, calls.call, between, min_cached=0)
