"""Encrypted connections of a worker: its port, and its channels to other workers. Without TLS files they are plain.

A port takes renewed files with the next handshake; a channel has those that lay there when it was opened. Callers need
a certificate of the cluster's authority, and a worker is known by its name, whatever its address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import structlog

from cache_store.tls_files import Component, Renewal, TlsBytes, TlsFiles, tls_name

Options = Sequence[tuple[str, str | int]]

_log = structlog.get_logger(__name__)


def add_port(server: grpc.aio.Server, address: str, tls: TlsFiles | None) -> int:
    """Binds. Raises RuntimeError for a port that is taken, InvalidRequestError for files that cannot be used."""
    return server.add_insecure_port(address) if tls is None else server.add_secure_port(address, _credentials(tls))


def peer_channel(address: str, tls: TlsFiles | None, options: Options = ()) -> grpc.aio.Channel:
    """A channel to another worker. Raises InvalidRequestError for files that cannot be used."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    files = tls.read()
    credentials = grpc.ssl_channel_credentials(files.authority, files.key, files.certificate)
    named = (*options, ("grpc.ssl_target_name_override", tls_name(Component.WORKER)))
    return grpc.aio.secure_channel(address, credentials, options=named)


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    renewal = Renewal(tls, lambda what: _log.info("tls_renewal", what=what))

    def renewed() -> Any:  # None where nothing changed, of which the stubs do not know
        read = renewal.take()
        return None if read is None else _configuration(read)

    first = _configuration(renewal.first)
    return grpc.dynamic_ssl_server_credentials(first, renewed, require_client_authentication=True)


def _configuration(read: TlsBytes) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(read.key, read.certificate)], read.authority)
