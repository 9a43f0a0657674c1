"""Where a process finds its certificate, its key and whom it trusts, and the names by which components know each other.

Files are read again for every use, so that a renewed certificate is taken without a word. Knows no gRPC.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cache_store.errors import InvalidRequestError

_DOMAIN = "stemcache.internal"


class Component(StrEnum):
    """Who has a certificate."""

    ROUTER = "router"
    WORKER = "worker"
    SUPERVISOR = "supervisor"
    OPERATOR = "operator"
    """Who uses the admin port."""
    REDIS = "redis"


def tls_name(component: Component) -> str:
    """The name in a component's certificate. Callers ask for it whatever address they dial: addresses come and go."""
    return f"{component}.{_DOMAIN}"


@dataclass(frozen=True, slots=True)
class TlsBytes:
    """Contents of the files, as PEM."""

    certificate: bytes
    key: bytes
    authority: bytes | None


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Own certificate with its chain, own key, and certificates of the authorities that are trusted."""

    certificate: Path
    key: Path
    authority: Path | None
    """None: callers are asked for no certificate."""

    def read(self) -> TlsBytes:
        """Raises InvalidRequestError for files that are missing or do not belong together."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
            if self.authority is not None:
                context.load_verify_locations(self.authority)
            return TlsBytes(
                self.certificate.read_bytes(),
                self.key.read_bytes(),
                self.authority.read_bytes() if self.authority is not None else None,
            )
        except (OSError, ssl.SSLError, ValueError) as error:
            raise InvalidRequestError("tls", self._what_is_wrong(error)) from error

    def stamp(self) -> tuple[int, ...]:
        """Changes when a file is exchanged. Raises OSError."""
        files = (self.certificate, self.key, *([self.authority] if self.authority is not None else []))
        return tuple(number for file in files for number in (file.stat().st_mtime_ns, file.stat().st_ino))

    def _what_is_wrong(self, error: Exception) -> str:
        for file in (self.certificate, self.key, self.authority):
            if file is not None and not file.is_file():
                return f"there is no file {file}; `stemcache certs` makes certificates for tests and small set-ups"
        if "mismatch" in str(error).lower():
            return f"the key {self.key} does not belong to the certificate {self.certificate}; give both of one folder"
        return (
            f"{self.certificate}, {self.key} or {self.authority} cannot be used ({_reason(error)}); they are PEM "
            "files, readable for this process, the key without a password"
        )


class Renewal:
    """Tells when files were exchanged for others that can be used. Of one port."""

    def __init__(self, files: TlsFiles, report: Callable[[str], None]) -> None:
        """`report` is told in a sentence what became of a renewal. Raises InvalidRequestError."""
        self.first = files.read()
        self._files = files
        self._report = report
        self._stamp = files.stamp()

    def take(self) -> TlsBytes | None:
        """The new contents; None where nothing changed, or what lies there is half of a renewal."""
        try:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return None
            read = self._files.read()
        except (InvalidRequestError, OSError) as error:
            self._report(f"the renewed certificate is not used yet: {error}")
            return None
        self._stamp = stamp
        self._report(f"the renewed certificate {self._files.certificate} is used")
        return read


def _reason(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return "no right to read"
    return str(getattr(error, "reason", None) or str(error) or "not PEM")


def _no_password() -> bytes:
    raise ValueError("the key has a password")
