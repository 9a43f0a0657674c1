"""The page as one document: its mark-up, style and script, put together once, with a fresh nonce for each answer."""

from __future__ import annotations

import secrets
from functools import cache
from importlib.resources import files

_NONCE = "@NONCE@"


def page() -> tuple[str, bytes]:
    """A nonce, and the page that carries it."""
    nonce = secrets.token_urlsafe(18)
    return nonce, _source().replace(_NONCE, nonce).encode("utf-8")


@cache
def _source() -> str:
    folder = files("services.console").joinpath("page")
    read = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in _FILES}
    scripts = "\n".join(read[name] for name in _FILES if name.endswith(".js"))
    return read["page.html"].replace("/*STYLE*/", read["page.css"]).replace("/*SCRIPT*/", scripts)


_FILES = ("page.html", "page.css", "base.js", "live.js", "blocks.js", "requests.js", "main.js")
