"""Files of the embedded Valkey: its folder, the lock on it, where the socket goes, and the list of users."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cache_store.errors import PreconditionError
from services.cluster.redis_roles import RedisRole, RoleUrls, acl_rules

MAX_SOCKET_PATH_BYTES = 100
"""The kernel takes 107 bytes of path for a Unix socket; the rest is margin."""

_LOCK_TIMEOUT_S = 1.0
_LOCK_POLL_S = 0.02
_LOG_TAIL_BYTES = 1_500
_SOCKET_NAME = "valkey.sock"


@dataclass(frozen=True, slots=True)
class ValkeyFiles:
    """Where one server keeps what. `temporary` is a folder to remove afterwards, where there is one."""

    data: Path
    socket: Path
    temporary: Path | None

    @property
    def acl(self) -> Path:
        """List of users."""
        return self.data / "users.acl"

    @property
    def log(self) -> Path:
        """What the server says; begun anew with each start, the one before is kept as `valkey.log.1`."""
        return self.data / "valkey.log"

    def keep_last_log(self) -> None:
        """Makes room for a new log."""
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))

    def log_tail(self) -> str:
        """End of the log, empty where there is none."""
        try:
            return self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return ""

    def clean_up(self) -> None:
        """Removes the socket and the temporary folder."""
        self.socket.unlink(missing_ok=True)
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)


def private_folder(path: Path) -> Path:
    """Makes `path`, absolute, readable by its owner only. Raises PreconditionError."""
    path = path.absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise PreconditionError(f"{path} cannot be used as data folder ({error}); choose one that you own") from error
    return path


def take_lock(data: Path) -> IO[str]:
    """Locks the folder for one server. Raises PreconditionError while another one, or its parent, lives.

    A server that is just ending gets a moment to do so.
    """
    lock = (data / "lock").open("a+", encoding="ascii")
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                lock.seek(0)
                owner = lock.read().strip() or "unknown"
                lock.close()
                raise PreconditionError(
                    f"{data} is in use by a running Valkey started by process {owner}; stop that one, or choose "
                    "another data folder"
                ) from None
            time.sleep(_LOCK_POLL_S)
            continue
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return lock


def choose_files(data: Path) -> ValkeyFiles:
    """Puts the socket into `data`, or where that path is too long for a socket, into a private temporary folder."""
    socket = data / _SOCKET_NAME
    if _fits(socket):
        socket.unlink(missing_ok=True)
        return ValkeyFiles(data, socket, None)
    temporary = Path(tempfile.mkdtemp(prefix="stemcache-"))
    socket = temporary / _SOCKET_NAME
    if not _fits(socket):
        temporary.rmdir()
        raise PreconditionError(
            f"neither {data} nor {temporary.parent} gives a path of at most {MAX_SOCKET_PATH_BYTES} bytes for a Unix "
            "socket; choose a shorter data folder, or set TMPDIR to a shorter one"
        )
    return ValkeyFiles(data, socket, temporary)


def write_users(path: Path, passwords: RoleUrls, before: str = "") -> None:
    """Writes the list of users with hashed passwords, mode 0600. The default user is off.

    `before`: a list whose hashes stay beside those of `passwords`.
    """
    lines = ["user default off nopass sanitize-payload resetkeys resetchannels -@all"]
    had = {words[1]: words for words in map(str.split, before.splitlines()) if words[:1] == ["user"] and words[1:]}
    for role in RedisRole:
        own = f"#{hashlib.sha256(passwords.of(role).encode()).hexdigest()}"
        others = [word for word in had.get(role, ()) if word.startswith("#")]
        hashes = " ".join(dict.fromkeys([own, *others]))
        lines.append(f"user {role} on {hashes} sanitize-payload resetchannels {acl_rules(role)}")
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES
