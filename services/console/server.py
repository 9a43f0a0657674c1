"""The console: an operator logs in with the admin key, and sees. Decides who sees what; owns sessions and one history.

It has no key of its own: what it shows it asks of the operator's API, with the key that was typed in. Only reads.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from http.cookies import CookieError, SimpleCookie

import structlog

from cache_store.clock import Clock
from services.client.async_admin import AsyncAdminReader
from services.client.errors import ApiError, ApiNotFoundError, ApiUnauthenticatedError
from services.console import documents
from services.console.guards import NO_STORE, is_from_elsewhere, page_headers, safe_headers
from services.console.history import History
from services.console.http_server import HttpServer, Request, Response
from services.console.page_source import page
from services.console.sessions import LIFETIME_S, LoginGuard, Sessions
from services.tls import Trust

COOKIE = "stemcache_console"
MIN_SAMPLE_S = 0.9
"""However many look, the router is asked so often."""
MAX_RECORDS = 200
MAX_KEY_CHARS = 512

_log = structlog.get_logger(__name__)

Answer = Callable[[AsyncAdminReader, Request], Awaitable[object]]


class Console:
    """Of one router."""

    def __init__(self, admin_address: str, trust: Trust | None, host: str, clock: Clock) -> None:
        """`trust`: how the admin port is known; `host`: where to listen, and one of the names that it answers to."""
        self._admin_address = admin_address
        self._trust = trust
        self._host = host
        self._clock = clock
        self._http = HttpServer(self.answer)
        self._sessions: Sessions[AsyncAdminReader] = Sessions(clock)
        self._guard = LoginGuard(clock)
        self._history = History()
        self._sampling = asyncio.Lock()
        self._sampled_s = float("-inf")
        self._live: object = None
        self._answers: dict[str, Answer] = {
            "/api/live": self._tell_live,
            "/api/requests": _tell_requests,
            "/api/request": _tell_request,
            "/api/blocks": _tell_blocks,
        }

    async def start(self, port: int) -> int:
        """Listens; the port. Raises OSError."""
        return await self._http.start(self._host, port)

    async def stop(self) -> None:
        """Ends sessions and connections."""
        await self._http.stop()
        await self._sessions.close()

    async def answer(self, request: Request) -> Response:
        """One request's answer."""
        if is_from_elsewhere(request, self._host):
            return _refusal(403, "this is the console of a Stemcache router; open it under its own address")
        if request.method == "GET" and request.path == "/":
            nonce, body = page()
            return Response(200, body, "text/html; charset=utf-8", page_headers(nonce))
        if request.method == "POST" and request.path == "/api/login":
            return await self._log_in(request)
        name = _session_name(request)
        client = await self._sessions.find(name) if name else None
        if client is None:
            return _refusal(401, "log in first")
        if request.method == "POST" and request.path == "/api/logout":
            await self._sessions.end(name)
            return Response(200, b"{}", headers=(*NO_STORE, *safe_headers(), _cookie("", 0)))
        answer = self._answers.get(request.path)
        if answer is None or request.method != "GET":
            return _refusal(404, "there is no such page")
        return await self._told(answer, client, request)

    async def _told(self, answer: Answer, client: AsyncAdminReader, request: Request) -> Response:
        try:
            body = documents.document(await answer(client, request))
        except ApiNotFoundError as error:
            return _refusal(404, error.message)
        except ApiUnauthenticatedError:
            await self._sessions.end(_session_name(request))
            return _refusal(401, "the key opens nothing any more; log in again")
        except ApiError as error:
            return _refusal(503, error.message)
        return Response(200, body, headers=(*NO_STORE, *safe_headers()))

    async def _log_in(self, request: Request) -> Response:
        """The key goes to the admin port, which compares it in constant time; a wrong one costs a place."""
        key = _key(request)
        if key is None:
            return _refusal(400, "send the admin key as JSON")
        if wait_s := self._guard.wait_s():
            headers = (("retry-after", f"{wait_s:.0f}"),)
            return _refusal(429, f"too many wrong keys; try again in {wait_s:.0f} s", headers)
        self._guard.take()
        client = AsyncAdminReader(self._admin_address, key, self._trust)
        try:
            await client.status()
        except ApiUnauthenticatedError:
            await client.close()
            _log.warning("console.login_refused", peer=request.peer)
            return _refusal(401, "this is not the admin key")
        except ApiError as error:
            self._guard.give_back()
            await client.close()
            return _refusal(503, error.message)
        self._guard.give_back()
        _log.info("console.logged_in", peer=request.peer)
        name = await self._sessions.open(client)
        return Response(200, b"{}", headers=(*NO_STORE, *safe_headers(), _cookie(name, int(LIFETIME_S))))

    async def _tell_live(self, client: AsyncAdminReader, _: Request) -> object:
        async with self._sampling:
            now_s = self._clock.monotonic_s()
            if self._live is None or now_s - self._sampled_s >= MIN_SAMPLE_S:
                tenants, status = await client.list_tenants(), await client.status()
                view = self._history.take(status, tenants, time.time(), self._clock.monotonic_s())
                self._live, self._sampled_s = documents.live(view), now_s
            return self._live


async def _tell_requests(client: AsyncAdminReader, request: Request) -> object:
    return documents.records(await client.request_records(MAX_RECORDS, request.query.get("tenant", "")))


async def _tell_request(client: AsyncAdminReader, request: Request) -> object:
    told = await client.explain_request(request.query.get("tenant", ""), request.query.get("id", ""))
    return documents.explanation(told)


async def _tell_blocks(client: AsyncAdminReader, request: Request) -> object:
    told = await client.block_map(request.query.get("worker", ""), request.query.get("request", ""))
    return documents.block_map(told)


def _key(request: Request) -> str | None:
    """The key of a login; None where it is no login."""
    try:
        document = json.loads(request.body)
    except (ValueError, RecursionError):
        return None
    key = document.get("key") if isinstance(document, dict) else None
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARS:
        return None
    return key if key.isascii() and key.isprintable() and " " not in key else None


def _session_name(request: Request) -> str:
    try:
        cookies = SimpleCookie(request.headers.get("cookie", ""))
    except CookieError:
        return ""
    return cookies[COOKIE].value if COOKIE in cookies else ""


def _cookie(name: str, max_age_s: int) -> tuple[str, str]:
    return "set-cookie", f"{COOKIE}={name}; Max-Age={max_age_s}; Path=/; HttpOnly; SameSite=Strict"


def _refusal(status: int, message: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    body = documents.document({"error": message})
    return Response(status, body, headers=(*NO_STORE, *safe_headers(), *headers))
