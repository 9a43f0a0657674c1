"""The folder where one `stemcache up` keeps what outlives it, and the lock that makes it the only one there.

Layout: `valkey/` (data of the embedded server), `master.key`, `admin.token`, `router.log`, `up.json` (where the running
system listens), `up.lock`. The lock belongs to the open file of the process that runs the system, so it ends with that
process however that process ends; `up.json` without the lock is a leftover.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cache_store.errors import PreconditionError
from services.private_files import is_private

_TOKEN_BYTES = 32


class DataFolder:
    """Paths inside the folder. `prepare` makes it."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()

    @property
    def master_key(self) -> Path:
        """File of the key that wraps tenants' secrets."""
        return self.path / "master.key"

    @property
    def admin_token(self) -> Path:
        """File of the operator's credential."""
        return self.path / "admin.token"

    @property
    def router_log(self) -> Path:
        """What the router says, kept over its restarts."""
        return self.path / "router.log"

    @property
    def metrics_token(self) -> Path:
        """The credential of whoever reads metrics over the network."""
        return self.path / "metrics-token"

    @property
    def state(self) -> Path:
        """Where the running system listens."""
        return self.path / "up.json"

    @property
    def lock(self) -> Path:
        """Held while a system runs."""
        return self.path / "up.lock"

    def prepare(self) -> None:
        """Makes the folder, mode 0700. Raises PreconditionError where that cannot be."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise PreconditionError(
                f"{self.path} cannot be used as data folder ({error.strerror}); choose one that you own (--data-dir)"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock. Raises PreconditionError while another system runs on this folder."""
        with self.lock.open("a+", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise PreconditionError(
                    f"a stemcache already runs on {self.path} (process {file.read().strip() or 'unknown'}); stop it "
                    "with Ctrl-C or SIGTERM, or start another one with --data-dir"
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    def is_locked(self) -> bool:
        """Whether a system runs on this folder now."""
        try:
            with self.lock.open("r", encoding="ascii") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def load_or_make_metrics_token(self) -> str:
        """What Prometheus shows to processes whose metrics are read over the network. Raises as the next one."""
        if not self.metrics_token.exists():
            write_private(self.metrics_token, secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
        return read_private(self.metrics_token).strip()

    def load_or_make_admin_token(self) -> str:
        """The operator's credential, made at the first start. Raises PreconditionError where others could read it."""
        if not self.admin_token.exists():
            write_private(self.admin_token, secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
        return read_private(self.admin_token).strip()


def write_private(path: Path, text: str) -> None:
    """Writes a file of mode 0600, whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_private(path: Path) -> str:
    """Reads a secret file. Raises PreconditionError where it is unreadable, or readable by others."""
    try:
        status = path.stat()
        mode = stat.S_IMODE(status.st_mode)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PreconditionError(f"{path} cannot be read: {error.strerror}") from error
    if not is_private(status):
        raise PreconditionError(f"{path} can be read by others (mode {mode:o}); run: chmod 600 {path}")
    return text
