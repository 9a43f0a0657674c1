"""What is sent to the console in place of a login, without a router behind it."""

from __future__ import annotations

import pytest

from cache_store.clock import SystemClock
from services.console.http_server import Request
from services.console.server import Console

HEADERS = {"host": "127.0.0.1:7422", "x-stemcache-console": "1"}


@pytest.mark.parametrize("body", [b"[" * 4_000, b'{"a":' * 600, b"\xff\xfe\xfd", b'{"key":NaN}', b""])
async def test_what_is_no_json_of_a_login_is_refused(body: bytes) -> None:
    console = Console("127.0.0.1:1", None, "127.0.0.1", SystemClock())
    answer = await console.answer(Request("POST", "/api/login", {}, HEADERS, body, "127.0.0.1"))
    assert answer.status == 400
