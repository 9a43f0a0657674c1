"""Secrets of a set-up by hand: private, made once, each in a file of its own."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from cache_store.errors import InvalidRequestError, PreconditionError
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


def test_a_folder_of_before_gets_what_this_version_needs(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path / "secrets")
    files.make("valkey:6379", TLS_FOLDER)
    made = files.users.read_text()
    kept = {path: path.read_text() for path in files.path.iterdir() if path not in (files.users, files.metrics_token)}
    second = "#" + "ab" * 32
    files.users.write_text(made.replace(" sanitize-payload resetchannels -@all", f" {second} resetchannels +get", 1))
    files.metrics_token.unlink()
    assert main(["secrets", str(files.path), "--renew"]) == 0
    assert {path: path.read_text() for path in kept} == kept
    assert files.users.read_text().replace(f" {second}", "") == made
    assert f"{second} " in files.users.read_text()
    assert files.metrics_token.read_text().startswith("sct_")
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.path.iterdir()} == {0o600}
    assert main(["secrets", str(tmp_path / "none"), "--renew"]) != 0
    assert main(["secrets", str(files.path), "--renew", "--plain"]) != 0


@pytest.mark.parametrize("address", ["valkey", "valkey:99999", "valkey:0", "a b:1", "user@valkey:6379", "::1:6379"])
def test_what_is_no_address_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not HOST:PORT"):
        SecretFiles(tmp_path / "secrets").make(address, None)
    assert not (tmp_path / "secrets").exists()


@pytest.mark.parametrize("name", ["admin_token", "metrics_token", "ray_token"])
def test_a_token_is_not_taken_for_a_master_key(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a new one, nor one of before, which looked like a master key."""
    files = SecretFiles(tmp_path / "secrets")
    files.make("valkey:6379", None)
    path: Path = getattr(files, name)
    with pytest.raises(InvalidRequestError, match="64 hex digits"):
        from_file(path)
    path.write_text("ab" * 32)
    assert main(["master-key", str(path), "--step", "announce"]) != 0
    assert "another secret" in capsys.readouterr().err
    assert path.read_text() == "ab" * 32
    assert main(["master-key", str(files.master_key), "--step", "announce"]) == 0


def test_the_command_names_files_and_tells_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "secrets"
    assert main(["secrets", str(folder), "--redis", "valkey:6379"]) == 0
    out = capsys.readouterr().out
    assert str(folder / "master-key") in out
    assert not any(path.read_text().strip() in out for path in folder.iterdir())
    assert main(["certs", str(tmp_path / "certs"), "--name", "router=api.example.com"]) == 0
    assert main(["certs", str(tmp_path / "certs"), "--name", "api.example.com"]) != 0
    assert "components: router" in capsys.readouterr().err
