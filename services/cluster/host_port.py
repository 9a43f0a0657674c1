"""Takes HOST:PORT apart as an operator writes it. Knows no network."""

from __future__ import annotations

import re

from cache_store.errors import InvalidRequestError

_PLACE = re.compile(r"(?:\[(?P<ip>[0-9a-fA-F:.]+)\]|(?P<name>[^\s:/@\[\]]+)):(?P<port>[0-9]{1,5})", re.ASCII)


def host_port(field: str, text: str) -> tuple[str, int]:
    """Host, without brackets, and port. Raises InvalidRequestError for `field`."""
    match = _PLACE.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= 65_535:
        raise InvalidRequestError(field, f"{text!r} is not HOST:PORT with a port of 1 to 65535, such as valkey:6379")
    return match["ip"] or match["name"], int(match["port"])
