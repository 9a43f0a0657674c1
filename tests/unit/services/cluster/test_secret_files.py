"""Secrets of a set-up by hand: private, made once, each in a file of its own."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from cache_store.errors import PreconditionError
from services.cli.main import main
from services.cluster.redis_roles import RedisRole
from services.cluster.secret_files import TLS_FOLDER, SecretFiles
from services.tenants.master_key import from_file


def test_they_are_private_and_fit_together(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path / "secrets")
    files.make("valkey:6379", TLS_FOLDER)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.path.iterdir()} == {0o600}
    from_file(files.master_key)
    users = files.users.read_text()
    passwords = set()
    for role in RedisRole:
        url = urlsplit(files.redis_url(role).read_text().strip())
        assert (url.scheme, url.username, url.hostname, url.port) == ("rediss", role, "valkey", 6379)
        assert parse_qs(url.query)["ssl_ca_certs"] == [str(TLS_FOLDER / "ca.crt")]
        assert f"user {role} on #{hashlib.sha256((url.password or '').encode()).hexdigest()}" in users
        assert (url.password or "") not in users
        passwords.add(url.password)
    assert len(passwords) == 3


def test_none_is_replaced(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path / "secrets")
    files.make("valkey:6379", None)
    assert files.redis_url(RedisRole.WORKER).read_text().startswith("redis://worker:")
    with pytest.raises(PreconditionError, match="is not empty"):
        files.make("valkey:6379", None)


def test_the_command_names_files_and_tells_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "secrets"
    assert main(["secrets", str(folder), "--redis", "valkey:6379"]) == 0
    out = capsys.readouterr().out
    assert str(folder / "master-key") in out
    assert not any(path.read_text().strip() in out for path in folder.iterdir())
    assert main(["certs", str(tmp_path / "certs"), "--name", "router=api.example.com"]) == 0
    assert main(["certs", str(tmp_path / "certs"), "--name", "api.example.com"]) != 0
    assert "components: router" in capsys.readouterr().err
