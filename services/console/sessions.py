"""Who has logged in, and how often it was tried. In memory only; owned by one event loop.

A session is a random name in a cookie. It keeps the operator's client, which holds the key that was given; nothing else
of the console knows one.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cache_store.clock import Clock

IDLE_S = 1_800.0
LIFETIME_S = 12 * 3_600.0
MAX_SESSIONS = 32

FAILURES_AT_ONCE = 5.0
FAILURES_PER_S = 0.2
"""Of all callers together: the console is one operator's, and addresses are cheap."""


class Closeable(Protocol):
    """What a session ends with it."""

    async def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=Closeable)


@dataclass(slots=True)
class _Session(Generic[ClientT]):
    client: ClientT
    began_s: float
    used_s: float


class Sessions(Generic[ClientT]):
    """Those of one console."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: OrderedDict[bytes, _Session[ClientT]] = OrderedDict()
        """By a digest of the name: a look-up tells nothing of it by its time."""

    async def open(self, client: ClientT) -> str:
        """A session's name. The one that was used longest ago ends where there are too many."""
        name, now_s = secrets.token_urlsafe(32), self._clock.monotonic_s()
        self._sessions[_digest(name)] = _Session(client, now_s, now_s)
        if len(self._sessions) > MAX_SESSIONS:
            _, oldest = self._sessions.popitem(last=False)
            await oldest.client.close()
        return name

    async def find(self, name: str) -> ClientT | None:
        """Its client; None where it has ended."""
        digest, now_s = _digest(name), self._clock.monotonic_s()
        session = self._sessions.get(digest)
        if session is None:
            return None
        if now_s - session.used_s > IDLE_S or now_s - session.began_s > LIFETIME_S:
            await self.end(name)
            return None
        session.used_s = now_s
        self._sessions.move_to_end(digest)
        return session.client

    async def end(self, name: str) -> None:
        """Idempotent."""
        session = self._sessions.pop(_digest(name), None)
        if session is not None:
            await session.client.close()

    async def close(self) -> None:
        """Ends all."""
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.client.close()


class LoginGuard:
    """Lets a few wrong keys pass at once, then one each few seconds. Owned by one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = FAILURES_AT_ONCE
        self._at_s = clock.monotonic_s()

    def wait_s(self) -> float:
        """How long nobody may try; 0: now."""
        self._fill()
        return 0.0 if self._left >= 1.0 else (1.0 - self._left) / FAILURES_PER_S

    def take(self) -> None:
        """One try begins; one that succeeds is given back."""
        self._fill()
        self._left -= 1.0

    def give_back(self) -> None:
        """The key was right."""
        self._left = min(FAILURES_AT_ONCE, self._left + 1.0)

    def _fill(self) -> None:
        now_s = self._clock.monotonic_s()
        self._left = min(FAILURES_AT_ONCE, self._left + (now_s - self._at_s) * FAILURES_PER_S)
        self._at_s = now_s


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
