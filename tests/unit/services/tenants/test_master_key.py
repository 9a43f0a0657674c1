"""The master key: what it derives, whom a wrapped secret opens for, which files it may come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cache_store.domain import TenantId
from cache_store.errors import CorruptDataError, InvalidRequestError
from services.cli.main import main
from services.cli.master_key import Step
from services.tenants import master_key
from services.tenants.master_key import MasterKey, cluster_key, rewrap

MASTER = MasterKey(bytes(range(32)))
OTHER = MasterKey(bytes(32))
ACME, GLOBEX = TenantId("acme"), TenantId("globex")
SECRET = bytes(range(100, 132))


def test_derived_keys_hold_still() -> None:
    """Golden values: another derivation would make all stored data unreadable."""
    assert MASTER.key_id == "2e5e3aeb41899806"
    assert cluster_key(MASTER).hex() == "64e0d79f39faef493ce102113975b024720627b6b1e3e526ed24e964a18e46f8"
    assert MASTER.snapshot_mac_key.hex() == "a36eafed075691306ea92013ff6de01496d830a284bfb3fe717a58f8eb5b849f"
    assert MASTER.export_mac_key.hex() == "89398299aa7b10a17c4c5b20e36caabac5ca39e6fbc806e0d264357e583ad8f9"


def test_every_purpose_and_every_master_key_has_a_key_of_its_own() -> None:
    derived = [
        key
        for master in (MASTER, OTHER)
        for key in (cluster_key(master), master.snapshot_mac_key, master.export_mac_key, master.raw)
    ]
    assert len(set(derived)) == len(derived)
    assert MASTER.key_id != OTHER.key_id


def test_a_wrapped_secret_opens_for_its_tenant_under_its_key_only() -> None:
    wrapped = MASTER.wrap(ACME, SECRET)
    assert MASTER.unwrap(ACME, wrapped) == SECRET
    with pytest.raises(CorruptDataError, match="globex"):
        MASTER.unwrap(GLOBEX, wrapped)
    with pytest.raises(CorruptDataError, match=OTHER.key_id):
        OTHER.unwrap(ACME, wrapped)


def test_a_wrapped_secret_written_by_an_earlier_build_opens() -> None:
    wrapped = (
        "e08aed2e5f48a6a36ae8fef3f067884e23675d89b72e877adc8451a8bfbd"
        "3682b75c3fc8c4f024d9391d0eed4cbd8b78ac92204f4d2dd0f8cc3333ca"
    )
    assert MASTER.unwrap(ACME, bytes.fromhex(wrapped)) == SECRET


@pytest.mark.parametrize("position", [0, 11, 12, 43, 44, 59])
def test_one_changed_bit_does_not_open(position: int) -> None:
    wrapped = bytearray(MASTER.wrap(ACME, SECRET))
    wrapped[position] ^= 1
    with pytest.raises(CorruptDataError):
        MASTER.unwrap(ACME, bytes(wrapped))


@pytest.mark.parametrize("num_bytes", [0, 11, 12, 27, 59])
def test_a_wrapped_secret_cut_short_does_not_open(num_bytes: int) -> None:
    with pytest.raises(CorruptDataError):
        MASTER.unwrap(ACME, MASTER.wrap(ACME, SECRET)[:num_bytes])


def test_a_secret_of_another_length_is_no_secret() -> None:
    with pytest.raises(CorruptDataError, match="31 bytes"):
        MASTER.unwrap(ACME, MASTER.wrap(ACME, SECRET[:31]))


def test_the_same_secret_is_never_wrapped_into_the_same_bytes() -> None:
    assert MASTER.wrap(ACME, SECRET) != MASTER.wrap(ACME, SECRET)


def test_rewrapping_moves_a_secret_under_another_key() -> None:
    moved = rewrap(MASTER, OTHER, ACME, MASTER.wrap(ACME, SECRET))
    assert OTHER.unwrap(ACME, moved) == SECRET
    with pytest.raises(CorruptDataError):
        MASTER.unwrap(ACME, moved)
    with pytest.raises(CorruptDataError):
        rewrap(OTHER, MASTER, ACME, MASTER.wrap(ACME, SECRET))


def test_a_key_does_not_show_itself() -> None:
    assert MASTER.raw.hex() not in repr(MASTER)
    assert repr(MASTER.raw) not in repr(MASTER)


def test_a_value_is_64_hex_digits() -> None:
    assert master_key.from_value(f" {bytes(range(32)).hex().upper()}\n") == MASTER


@pytest.mark.parametrize("text", ["", "00", "g" * 64, "0" * 63, "0" * 65, "0x" + "0" * 62, "٠" * 64])
def test_any_other_value_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="openssl rand -hex 32") as caught:
        master_key.from_value(text)
    assert not text or text not in str(caught.value)


def test_a_file_made_here_is_private_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "master.key"
    made = master_key.create_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert master_key.from_file(path) == made
    assert master_key.generate() != made


def test_an_existing_key_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "master.key"
    made = master_key.create_file(path)
    with pytest.raises(FileExistsError):
        master_key.create_file(path)
    assert master_key.from_file(path) == made


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o644, 0o777])
def test_a_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "master.key"
    master_key.create_file(path)
    path.chmod(mode)
    with pytest.raises(InvalidRequestError, match=f"mode {mode:04o}.*chmod 600"):
        master_key.from_file(path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"\0" * 32, b"a" * 100_000])
def test_a_file_with_something_else_in_it_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "master.key"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(InvalidRequestError, match="64 hex digits"):
        master_key.from_file(path)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=f"{tmp_path}.*{os.strerror(2)}"):
        master_key.from_file(tmp_path / "absent")


def test_two_keys_are_one_in_use_and_one_that_is_believed(tmp_path: Path) -> None:
    both = master_key.from_value(f"{MASTER.raw.hex()}\n{OTHER.raw.hex()}\n")
    assert (both.key_id, both.other) == (MASTER.key_id, OTHER)
    assert cluster_key(both) == cluster_key(MASTER) + cluster_key(OTHER)
    assert master_key.from_value(master_key.to_text(both)) == both
    assert both.called(OTHER.key_id) == OTHER
    assert both.called("0" * 16) is None
    for text in (f"{MASTER.raw.hex()} {MASTER.raw.hex()}", " ".join(bytes([at] * 32).hex() for at in range(3))):
        with pytest.raises(InvalidRequestError, match="one or two"):
            master_key.from_value(text)


def test_a_master_key_is_exchanged_in_three_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key"
    old = master_key.create_file(file)
    assert main(["master-key", str(file), "--step", "switch"]) != 0
    for step, ids in (("announce", 2), ("switch", 2), ("retire", 1)):
        assert main(["master-key", str(file), "--step", step]) == 0
        now = master_key.from_file(file)
        out = capsys.readouterr().out
        assert now.key_id in out
        assert now.raw.hex() not in out
        assert len(out.split()) // 2 >= ids
        assert (now.key_id == old.key_id) is (step == "announce")
    assert master_key.from_file(file).other is None
    assert main(["master-key", str(file)]) == 0


def test_a_key_that_was_retired_too_early_is_still_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All steps at once: nothing has been wrapped under the new key yet, and the old one is what opens it."""
    file = tmp_path / "key"
    old = master_key.create_file(file)
    for step in Step:
        assert main(["master-key", str(file), "--step", step]) == 0
    kept = tmp_path / "key.retired"
    assert f"{old.key_id}, kept in {kept}" in capsys.readouterr().out
    assert master_key.from_file(kept) == old
    assert master_key.from_value(file.read_text() + kept.read_text()).called(old.key_id) == old


def test_a_key_that_was_retired_before_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next exchange ends where the key of the last one may still open exports; a step that is repeated does not."""
    file, kept = tmp_path / "key", tmp_path / "key.retired"
    first = master_key.create_file(file)
    for step in (*Step, Step.ANNOUNCE, Step.SWITCH):
        assert main(["master-key", str(file), "--step", step]) == 0
    before = file.read_text()
    assert main(["master-key", str(file), "--step", "retire"]) != 0
    assert first.key_id in capsys.readouterr().err
    assert (master_key.from_file(kept), file.read_text()) == (first, before)
    kept.rename(tmp_path / "elsewhere")
    assert main(["master-key", str(file), "--step", "retire"]) == 0
    file.write_text(before)
    assert main(["master-key", str(file), "--step", "retire"]) == 0, "it was cut short, and is done again"


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    file, link = tmp_path / "key", tmp_path / "link"
    old = master_key.create_file(file)
    link.symlink_to(file)
    assert main(["master-key", str(link), "--step", "announce"]) == 0
    assert link.is_symlink()
    assert master_key.from_file(file).other is not None
    assert master_key.from_file(file).key_id == old.key_id


def test_a_link_to_another_secret_is_refused(tmp_path: Path) -> None:
    secret, link = tmp_path / "admin.token", tmp_path / "key"
    master_key.create_file(secret)
    link.symlink_to(secret)
    before = secret.read_text()
    assert main(["master-key", str(link), "--step", "announce"]) != 0
    assert secret.read_text() == before
