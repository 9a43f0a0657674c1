"""What a user of the command line may set once instead of with each command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cache_store.errors import InvalidRequestError
from cache_store.tls_files import TlsFiles
from services.settings import environment
from services.tls import Trust

SYSTEM_AUTHORITIES = "system"
"""Instead of a file."""


@dataclass(frozen=True, slots=True)
class UserSettings:
    """Defaults of the command line; a flag goes first."""

    home: Path
    """STEMCACHE_HOME: the data folder of `stemcache up`."""
    cache_dir: Path
    """STEMCACHE_CACHE_DIR: converted models, digests and compiled kernels; can be deleted at any time."""
    redis_url: str = field(repr=False)
    """STEMCACHE_REDIS_URL; empty: the embedded Valkey."""
    api_key: str = field(repr=False)
    """STEMCACHE_API_KEY."""
    trust: Trust | None = None
    """STEMCACHE_TLS_CA_FILE: whom to trust, a file or `system`; with STEMCACHE_TLS_CERT_FILE and STEMCACHE_TLS_KEY_FILE
    for servers that ask for a certificate. STEMCACHE_TLS_SERVER_NAME: the server's name, where it is not the host that
    is dialled (of several routers the first). For addresses that are given; what `stemcache up` runs here is plain."""

    @staticmethod
    def load(environ: Mapping[str, str] | None = None) -> UserSettings:
        """Reads `environ`, by default this process's."""
        found = environment() if environ is None else environ

        def value(name: str, default: str) -> str:
            return found.get(name, "").strip() or default

        return UserSettings(
            home=Path(value("STEMCACHE_HOME", "~/.local/share/stemcache")).expanduser(),
            cache_dir=Path(value("STEMCACHE_CACHE_DIR", "~/.cache/stemcache")).expanduser(),
            redis_url=value("STEMCACHE_REDIS_URL", ""),
            api_key=value("STEMCACHE_API_KEY", ""),
            trust=_trust(
                value("STEMCACHE_TLS_CA_FILE", ""),
                value("STEMCACHE_TLS_CERT_FILE", ""),
                value("STEMCACHE_TLS_KEY_FILE", ""),
                value("STEMCACHE_TLS_SERVER_NAME", ""),
            ),
        )


def _trust(authority: str, certificate: str, key: str, server_name: str) -> Trust | None:
    if not authority:
        if certificate or key:
            raise InvalidRequestError(
                "STEMCACHE_TLS_CA_FILE", "STEMCACHE_TLS_CA_FILE is not set: name whom to trust, a file or `system`"
            )
        return None
    if bool(certificate) != bool(key):
        raise InvalidRequestError(
            "STEMCACHE_TLS_KEY_FILE", "set both of STEMCACHE_TLS_CERT_FILE and STEMCACHE_TLS_KEY_FILE, or none"
        )
    file = None if authority == SYSTEM_AUTHORITIES else Path(authority)
    return Trust(file, TlsFiles(Path(certificate), Path(key), file) if certificate else None, server_name)
