"""Looks at the certificate that a server shows: whether it is trusted, for whom, and how long. Changes nothing."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from cache_store.tls_files import TlsFiles
from services.certs.authority import names_in

TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Shown:
    """A certificate that is trusted."""

    names: tuple[str, ...]
    """DNS names and IP addresses."""
    ends: datetime

    def days_left(self, now: datetime) -> float:
        """Negative once it has ended."""
        return (self.ends - now).total_seconds() / 86_400

    def fits(self, name: str) -> bool:
        """Whether it is for `name`; `*.` stands for one label."""
        labels = name.lower().split(".")
        wild = ".".join(["*", *labels[1:]]) if len(labels) > 2 else name
        return any(each.lower() in (name.lower(), wild) for each in self.names)


class NotShownError(Exception):
    """Nobody answers, or what is shown is not trusted; the message says which."""


def look(host: str, port: int, authority: Path | None, identity: TlsFiles | None) -> Shown:
    """The certificate at `host`:`port`. Raises NotShownError."""
    try:
        context = ssl.create_default_context(cafile=authority)
        context.check_hostname = False  # names are compared by who asks, who knows which one counts
        context.set_alpn_protocols(["h2"])
        if identity is not None:
            context.load_cert_chain(identity.certificate, identity.key)
        with (
            socket.create_connection((host, port), TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            der = encrypted.getpeercert(binary_form=True)
    except ssl.SSLCertVerificationError as error:
        raise NotShownError(f"its certificate is not trusted: {error.verify_message}") from error
    except (OSError, ValueError) as error:
        raise NotShownError(f"no certificate is shown: {error}") from error
    assert der is not None, "a server always has one"
    certificate = x509.load_der_x509_certificate(der)
    return Shown(names_in(certificate), certificate.not_valid_after_utc.astimezone(UTC))
