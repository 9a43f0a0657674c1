"""A Unix socket before a real Redis server that can hold answers back: slow servers, cut-off calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class HeldRedis:
    """Forwards everything; `hold` keeps answers until `release`."""

    def __init__(self, url: str, socket: Path) -> None:
        self._target = urlsplit(url)
        self._socket = socket
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self._is_holding = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Reaches the server through here, as the same user."""
        credentials = self._target.netloc.rpartition("@")[0]
        return f"unix://{credentials}@{self._socket}?db=0"

    def hold(self) -> None:
        """From now on answers stay here."""
        self._is_holding.clear()
        self._may_pass.clear()

    def release(self) -> None:
        """Lets answers pass, first the ones held."""
        self._may_pass.set()

    async def until_an_answer_is_held(self) -> None:
        """Returns once the server has answered something that was held."""
        async with asyncio.timeout(10):
            await self._is_holding.wait()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self._socket)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        server_in, server_out = await asyncio.open_unix_connection(self._target.path)
        for copy in (self._requests(client_in, server_out), self._answers(server_in, client_out)):
            self._tasks.add(asyncio.create_task(copy))

    async def _requests(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        except ConnectionError:
            pass  # the client left
        finally:
            target.close()

    async def _answers(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if not self._may_pass.is_set():
                    self._is_holding.set()
                    await self._may_pass.wait()
                target.write(data)
                await target.drain()
        except ConnectionError:
            pass  # the client left
        finally:
            target.close()
