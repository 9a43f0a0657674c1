"""Encrypted connections of the services: ports, and channels to workers and routers. Without TLS files they are plain.

A port takes renewed files with the next handshake; a channel has those that lay there when it was opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog

from cache_store.errors import InvalidRequestError
from cache_store.tls_files import Component, Renewal, TlsBytes, TlsFiles, tls_name

_NAME_OPTION = "grpc.ssl_target_name_override"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Trust:
    """How a client knows a server, and shows itself."""

    authority: Path | None
    """Certificates of the authorities that are trusted; None: those that gRPC brings along."""
    identity: TlsFiles | None = None
    """Own certificate, for servers that ask for one."""
    server_name: str = ""
    """Name that the server has to have; empty: the host that is dialled, of several the first."""

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files. Raises InvalidRequestError."""
        try:
            authority = self.authority.read_bytes() if self.authority else None
        except OSError as error:
            raise InvalidRequestError("tls", f"{self.authority} cannot be read: {error.strerror}") from error
        if self.identity is None:
            return grpc.ssl_channel_credentials(authority)
        files = self.identity.read()
        return grpc.ssl_channel_credentials(authority, files.key, files.certificate)


def component_trust(files: TlsFiles) -> Trust:
    """For calls between components of one cluster."""
    return Trust(files.authority, files)


def name_option(component: Component) -> tuple[str, str]:
    """Channel option: the server has to have this component's name, whatever address is dialled."""
    return (_NAME_OPTION, tls_name(component))


def server_name_option(name: str) -> tuple[str, str]:
    """Channel option: the server has to have this name, whatever address is dialled."""
    return (_NAME_OPTION, name)


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Of a port; callers need a certificate where `files` names an authority. Raises InvalidRequestError."""
    renewal = Renewal(files, lambda what: _log.info("tls.renewal", what=what))

    def renewed() -> Any:  # None where nothing changed, of which the stubs do not know
        read = renewal.take()
        return None if read is None else _configuration(read)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(renewal.first), renewed, require_client_authentication=files.authority is not None
    )


def _configuration(read: TlsBytes) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(read.key, read.certificate)], read.authority)
