"""What `doctor` looks at, each fault provoked for real."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from services.cluster import checks
from services.cluster.data_folder import DataFolder
from services.cluster.findings import Level
from services.cluster.memory import MIB
from services.cluster.up_state import STATE_VERSION, UpState, write_state


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    made = DataFolder(tmp_path / "data")
    made.prepare()
    return made


def test_a_good_folder(folder: DataFolder) -> None:
    assert checks.check_data_folder(folder).level is Level.OK


def test_an_open_secret(folder: DataFolder) -> None:
    folder.load_or_make_admin_token()
    folder.admin_token.chmod(0o644)
    finding = checks.check_data_folder(folder)
    assert finding.level is Level.PROBLEM
    assert "chmod 600" in finding.found


def test_a_taken_port(folder: DataFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        finding = checks.check_port("port", "127.0.0.1", port, "--port", folder)
    assert finding.level is Level.PROBLEM
    assert "--port" in finding.advice
    assert f"sport = :{port}" in finding.advice


def test_a_free_port(folder: DataFolder) -> None:
    assert checks.check_port("port", "127.0.0.1", 0, "--port", folder).level is Level.OK


def test_a_port_of_the_running_system(folder: DataFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, folder.locked():
        port = server.getsockname()[1]
        write_state(folder, UpState(STATE_VERSION, os.getpid(), f"127.0.0.1:{port}", "127.0.0.1:1", "m", 0.0))
        finding = checks.check_port("port", "127.0.0.1", port, "--port", folder)
    assert finding.level is Level.OK
    assert "running stemcache" in finding.found


def test_an_address_of_another_machine(folder: DataFolder) -> None:
    assert checks.check_port("port", "192.0.2.1", 0, "--port", folder).level is Level.PROBLEM


def test_an_incomplete_model_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    finding, weights_bytes = checks.check_model_folder(tmp_path, tmp_path)
    assert finding.level is Level.PROBLEM
    assert "no weights" in finding.found
    assert "--model" in finding.advice
    assert weights_bytes == 0


def test_too_little_memory(folder: DataFolder) -> None:
    finding = checks.check_memory(1000, 10_000 * MIB, folder)
    assert finding.level is Level.PROBLEM
    assert "--workers" in finding.advice


def test_enough_memory(folder: DataFolder) -> None:
    assert checks.check_memory(1, 0, folder).level is Level.OK


def test_a_temporary_folder_too_deep_for_sockets(tmp_path: Path) -> None:
    assert checks.check_temporary_folder(tmp_path / ("x" * 60)).level is Level.PROBLEM
    assert checks.check_temporary_folder(Path("/tmp")).level is Level.OK
