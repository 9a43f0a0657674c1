"""Which Redis a system uses: the one that it is told, or an embedded Valkey that it starts and supervises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cache_store.errors import PreconditionError
from services.cluster.checks import check_redis_server
from services.cluster.data_folder import DataFolder
from services.cluster.findings import Level
from services.cluster.parts import Condition, Health, Part
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey


@dataclass(frozen=True, slots=True)
class RedisChoice:
    """A server that answers."""

    urls: RoleUrls = field(repr=False)
    parts: Sequence[Part]
    """What has to be supervised: nothing where somebody else runs the server."""
    description: str


class ValkeyPart:
    """Restarts a server that ended, under the same socket and passwords, so that nobody has to be told anew."""

    def __init__(self, server: EmbeddedValkey) -> None:
        self._server = server

    @property
    def name(self) -> str:
        return "valkey"

    def start(self) -> None:
        if not self._server.is_running():
            self._server.restart()

    def condition(self) -> Condition:
        if self._server.is_running():
            return Condition(Health.READY)
        return Condition(Health.FAILED, "the server ended")

    def stop(self) -> None:
        if self._server.is_running():
            self._server.stop()


@contextmanager
def choose_redis(folder: DataFolder, redis_url: str) -> Iterator[RedisChoice]:
    """The server at `redis_url`, or an embedded one where that is empty. Raises PreconditionError, with what to do."""
    if redis_url:
        for finding in check_redis_server(redis_url):
            if finding.level is Level.PROBLEM:
                raise PreconditionError(f"{finding.found}; {finding.advice}")
        yield RedisChoice(RoleUrls(redis_url, redis_url, redis_url), (), "Redis as given")
        return
    with EmbeddedValkey.start(folder.path) as server:
        yield RedisChoice(server.urls, (ValkeyPart(server),), "embedded Valkey")
