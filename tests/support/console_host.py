"""A router with its console, and a client that asks the console as its page does."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from services.cluster.redis_roles import RoleUrls
from services.settings import Address, RouterSettings
from tests.support.router_host import Cluster, router_settings, running_cluster

OWN = {"x-stemcache-console": "1", "content-type": "application/json"}


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def told(self) -> Any:
        """As JSON."""
        return json.loads(self.body)


class ConsoleClient:
    """Plain HTTP, a connection for each question; keeps the cookie as a browser would."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).netloc
        self.cookie = ""

    async def ask(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        """POST where there is a body."""
        data = b"" if body is None else json.dumps(body).encode()
        sent = {"host": self.address, "connection": "close", "content-length": str(len(data))}
        sent |= OWN if headers is None else headers
        if self.cookie:
            sent["cookie"] = self.cookie
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in sent.items())]
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + data)
        head, _, rest = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
        writer.close()
        status, *fields = head.decode("latin-1").split("\r\n")
        found = dict(map(_field, fields))
        if "set-cookie" in found:
            self.cookie = found["set-cookie"].split(";")[0]
        return Answer(int(status.split(" ")[1]), found, rest)

    async def log_in(self, key: str) -> Answer:
        """Keeps the cookie where it is let in."""
        return await self.ask("/api/login", {"key": key})


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name.lower(), value


@asynccontextmanager
async def cluster_with_console(
    urls: RoleUrls, folder: Path, workers: Sequence[dict[str, Any]] = ({},)
) -> AsyncIterator[Cluster]:
    """As `running_cluster`; `router.console_url` says where the console is."""

    def settings(*arguments: Any, **limits: Any) -> RouterSettings:
        return dataclasses.replace(router_settings(*arguments, **limits), console_listen=Address("127.0.0.1:0"))

    async with running_cluster(urls, folder, workers, settings=settings) as cluster:
        yield cluster
