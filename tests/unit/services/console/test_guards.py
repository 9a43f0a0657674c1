"""Other sites' pages are told apart from the console's own."""

from __future__ import annotations

import pytest

from services.console.guards import is_from_elsewhere, page_headers
from services.console.http_server import Request
from services.console.page_source import page

OWN = {"host": "127.0.0.1:7422", "x-stemcache-console": "1", "sec-fetch-site": "same-origin"}


def request(path: str = "/api/live", method: str = "GET", **changes: str | None) -> Request:
    headers = {name.replace("_", "-"): value for name, value in (OWN | changes).items() if value is not None}
    return Request(method, path, {}, headers, b"", "127.0.0.1")


def changed(**changes: str | None) -> dict[str, str | None]:
    return changes


@pytest.mark.parametrize(
    "changes",
    [
        changed(),
        changed(origin="http://127.0.0.1:7422"),
        changed(host="localhost:7422", origin="http://localhost:7422"),
        changed(host="[::1]:7422"),
        {"sec-fetch-site": None},
    ],
)
def test_the_page_itself_is_answered(changes: dict[str, str | None]) -> None:
    assert not is_from_elsewhere(request(**changes), "127.0.0.1")


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:7422"},
        {"host": ""},
        {"host": "[::1"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"x-stemcache-console": None},
    ],
)
def test_everybody_else_is_refused(changes: dict[str, str | None]) -> None:
    assert is_from_elsewhere(request(**changes), "127.0.0.1")


def test_the_page_may_be_opened_from_a_link_but_under_its_own_name_only() -> None:
    assert not is_from_elsewhere(request("/", x_stemcache_console=None, sec_fetch_site="cross-site"), "127.0.0.1")
    assert is_from_elsewhere(request("/", host="evil.example"), "127.0.0.1")


def test_a_name_that_it_listens_on_is_its_own() -> None:
    assert not is_from_elsewhere(request(host="10.0.0.7:7422"), "10.0.0.7")
    assert not is_from_elsewhere(request(host="router.example:7422"), "0.0.0.0")


def test_the_page_is_one_document_that_loads_nothing() -> None:
    (nonce, body), (other, _) = page(), page()
    text = body.decode()
    assert nonce != other
    assert text.count(f'nonce="{nonce}"') == 2
    assert "@NONCE@" not in text
    for loads in ("src=", "@import", "url(", "http://", "https://", "innerHTML", "eval("):
        assert loads not in text.replace("http://www.w3.org/2000/svg", "")
    policy = dict(page_headers(nonce))["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
