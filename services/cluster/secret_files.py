"""Secrets of a set-up by hand: one file each, made once, so that no secret stands in a command line or a variable.

With them goes the list of Redis users, which has hashes only.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlencode, urlsplit

from cache_store.errors import PreconditionError
from services.cluster.data_folder import read_private, write_private
from services.cluster.host_port import host_port
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

        Raises PreconditionError where there are some already: what runs with them would lock itself out; and
        InvalidRequestError for what is no address.
        """
        host_port("redis", redis_address)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(self.path.iterdir()):
            raise PreconditionError(f"{self.path} is not empty; name a new folder, or remove what is in it")
        passwords = RoleUrls(*(secrets.token_hex(_TOKEN_BYTES) for _ in RedisRole))
        write_users(self.users, passwords)
        for role in RedisRole:
            write_private(self.redis_url(role), _url(role, passwords.of(role), redis_address, tls_folder) + "\n")
        master_key.create_file(self.master_key)
        for path in (self.admin_token, self.ray_token, self.metrics_token):
            write_private(path, new_token() + "\n")

    def renew(self) -> None:
        """Keeps what there is and writes what this version needs: rules of users, and tokens that are missing.

        Passwords are those of the URLs; a second one in the list of users stays. Raises PreconditionError where a URL
        is missing.
        """
        passwords = RoleUrls(*(_password(self.redis_url(role)) for role in RedisRole))
        write_users(self.users, passwords, self.users.read_text(encoding="ascii") if self.users.exists() else "")
        for path in (self.admin_token, self.ray_token, self.metrics_token):
            if not path.exists():
                write_private(path, new_token() + "\n")
        if os.geteuid() == 0:  # whom the folder was given to goes on to read what lies there
            owner = self.path.stat()
            for path in self.path.iterdir():
                os.chown(path, owner.st_uid, owner.st_gid)


def _password(file: Path) -> str:
    password = urlsplit(read_private(file).strip()).password
    if not password:
        raise PreconditionError(f"{file} names no password")
    return unquote(password)


def new_token() -> str:
    """Looks unlike a master key, so that one is not taken for the other."""
    return f"sct_{secrets.token_hex(_TOKEN_BYTES)}"


def _url(role: RedisRole, password: str, address: str, tls_folder: Path | None) -> str:
    if tls_folder is None:
        return f"redis://{role}:{password}@{address}/0"
    files = {
        "ssl_ca_certs": tls_folder / "ca.crt",
        "ssl_certfile": tls_folder / "tls.crt",
        "ssl_keyfile": tls_folder / "tls.key",
    }
    return f"rediss://{role}:{password}@{address}/0?{urlencode(files, safe='/')}"
