"""Secrets of a set-up by hand: one file each, made once, so that no secret stands in a command line or a variable.

With them goes the list of Redis users, which has hashes only.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from cache_store.errors import PreconditionError
from services.cluster.data_folder import write_private
from services.cluster.redis_roles import RedisRole, RoleUrls
from services.cluster.valkey_files import write_users
from services.tenants import master_key

_TOKEN_BYTES = 32
TLS_FOLDER = Path("/run/stemcache/tls")
"""Where processes find their certificates, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class SecretFiles:
    """Names in a folder."""

    path: Path

    @property
    def master_key(self) -> Path:
        return self.path / "master-key"

    @property
    def admin_token(self) -> Path:
        return self.path / "admin-token"

    @property
    def ray_token(self) -> Path:
        return self.path / "ray-token"

    @property
    def metrics_token(self) -> Path:
        return self.path / "metrics-token"

    @property
    def users(self) -> Path:
        """Of Redis, with hashed passwords."""
        return self.path / "users.acl"

    def redis_url(self, role: RedisRole) -> Path:
        """The URL of a role, with its password."""
        return self.path / f"redis-url-{role}"

    def make(self, redis_address: str, tls_folder: Path | None) -> None:
        """Makes all of them. `tls_folder`: of the processes that connect; None: plain connections.

        Raises PreconditionError where there are some already: what runs with them would lock itself out.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(self.path.iterdir()):
            raise PreconditionError(f"{self.path} is not empty; name a new folder, or remove what is in it")
        passwords = RoleUrls(*(secrets.token_hex(_TOKEN_BYTES) for _ in RedisRole))
        write_users(self.users, passwords)
        for role in RedisRole:
            write_private(self.redis_url(role), _url(role, passwords.of(role), redis_address, tls_folder) + "\n")
        master_key.create_file(self.master_key)
        for path in (self.admin_token, self.ray_token, self.metrics_token):
            write_private(path, secrets.token_hex(_TOKEN_BYTES) + "\n")


def _url(role: RedisRole, password: str, address: str, tls_folder: Path | None) -> str:
    if tls_folder is None:
        return f"redis://{role}:{password}@{address}/0"
    files = {
        "ssl_ca_certs": tls_folder / "ca.crt",
        "ssl_certfile": tls_folder / "tls.crt",
        "ssl_keyfile": tls_folder / "tls.key",
    }
    return f"rediss://{role}:{password}@{address}/0?{urlencode(files, safe='/')}"
