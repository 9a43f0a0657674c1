"""Which files with secrets are private enough."""

from __future__ import annotations

import os

import pytest

from services.private_files import is_private


def status(mode: int, uid: int, gid: int) -> os.stat_result:
    return os.stat_result((0o100000 | mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "expected"),
    [
        (0o600, 10001, 10001, True),
        (0o400, 10001, 10001, True),
        (0o440, 0, 10001, True),  # as Kubernetes mounts a secret for this process's group
        (0o440, 0, 4711, False),
        (0o440, 10001, 10001, False),
        (0o460, 0, 10001, False),
        (0o444, 0, 10001, False),
        (0o604, 10001, 10001, False),
    ],
)
def test_a_secret_is_read_by_its_owner_or_given_by_root(
    monkeypatch: pytest.MonkeyPatch, mode: int, uid: int, gid: int, expected: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    monkeypatch.setattr(os, "getegid", lambda: 10001)
    monkeypatch.setattr(os, "getgroups", lambda: [10001])
    assert is_private(status(mode, uid, gid)) is expected


def test_root_itself_gets_no_file_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not is_private(status(0o440, 0, 0))
