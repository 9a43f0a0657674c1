"""Where a process shows its metrics, and who may read them there. Checked where it is made.

Metrics name tenants and tell their traffic: they are the operator's. On the loopback address whoever has an account on
the machine may read them; anywhere else a token is needed.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from cache_store.errors import InvalidRequestError

MIN_TOKEN_CHARS = 16


@dataclass(frozen=True, slots=True)
class MetricsListen:
    """An address for metrics. Raises InvalidRequestError for one that others could read."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    token: str = field(default="", repr=False)
    """What readers have to show; empty on the loopback address only."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise InvalidRequestError("metrics port", f"the port of metrics is {self.port}; it is 0 to 65535")
        if self.token and len(self.token) < MIN_TOKEN_CHARS:
            raise InvalidRequestError(
                "metrics token", f"the token of metrics has at least {MIN_TOKEN_CHARS} characters"
            )
        if not (self.token or is_loopback(self.host)):
            raise InvalidRequestError(
                "metrics host",
                f"metrics on {self.host} could be read by other machines: set a token, or listen on 127.0.0.1",
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # another name
        return False
