"""What browsers are told, and whom they may speak for. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from services.console.http_server import Request

OWN_HEADER = "x-stemcache-console"
"""Sent by the page with everything that it asks: no form and no other site's script can without being asked first."""

NO_STORE = (("cache-control", "no-store"),)
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def safe_headers() -> tuple[tuple[str, str], ...]:
    """Of every answer."""
    return (
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        ("x-frame-options", "DENY"),
    )


def page_headers(nonce: str) -> tuple[tuple[str, str], ...]:
    """Of the page: its own style and script run, by the nonce of this answer, and nothing else is loaded."""
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return (
        *NO_STORE,
        *safe_headers(),
        ("content-security-policy", policy),
        ("cross-origin-opener-policy", "same-origin"),
        ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
    )


def is_from_elsewhere(request: Request, host: str) -> bool:
    """Whether another site may be behind it: by the name it calls us, its origin, or for want of the page's header."""
    named = _host_of(f"//{request.headers.get('host', '')}")
    if named not in _LOOPBACK and named != host and not _is_open(host):
        return True
    if request.path == "/" and request.method == "GET":
        return False
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return True
    origin = request.headers.get("origin")
    if origin is not None and _place_of(origin) != request.headers.get("host", ""):
        return True
    return OWN_HEADER not in request.headers


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _place_of(url: str) -> str | None:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return None


def _is_open(host: str) -> bool:
    """Whether it listens on all addresses, so that its names are not known."""
    return host in ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound
