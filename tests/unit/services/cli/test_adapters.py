"""`stemcache adapters …` and `up --adapter`: what is sent, printed and returned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stemcache.admin.v1 import admin_pb2 as pb

from cache_store.errors import InvalidRequestError
from services.cli.exit_codes import ExitCode
from services.cli.main import build_parser, main
from services.cluster.adapter_options import AdapterOption, check_adapters, parse_adapter
from tests.support.adapter_folders import plain_tensors, write_folder
from tests.support.scripted_admin import ScriptedAdmin

Capture = pytest.CaptureFixture[str]


def adapter(*states: int) -> pb.Adapter:
    made = pb.Adapter(name="mine", base_model="m", folder="/adapters/mine", digest="ab" * 32, tenants=["acme"])
    made.load_time.FromSeconds(1_700_000_000)
    for number, state in enumerate(states):
        error = "it was trained for another model" if state == pb.WorkerAdapter.STATE_FAILED else ""
        made.workers.add(worker_id=f"worker-{number}", state=state, error=error)
    return made


@pytest.fixture
def flags(admin: ScriptedAdmin, tmp_path: Path) -> list[str]:
    token = tmp_path / "token"
    token.write_text("t" * 32)
    token.chmod(0o600)
    return ["--admin-address", admin.address, "--admin-token-file", str(token)]


SERVED, FAILED = pb.WorkerAdapter.STATE_SERVED, pb.WorkerAdapter.STATE_FAILED


def test_load_sends_an_absolute_folder_and_says_who_serves_it(
    admin: ScriptedAdmin, flags: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    admin.adapters = [adapter(SERVED, SERVED)]
    command = ["adapters", "load", "mine", "here", "--base-model", "m", "--tenant", "acme", "--tenant", "globex"]
    assert main([*command, *flags]) == ExitCode.OK
    (sent,) = admin.loads
    assert (sent.name, sent.folder, sent.base_model) == ("mine", str(tmp_path / "here"), "m")
    assert list(sent.tenants) == ["acme", "globex"]
    assert capsys.readouterr().out == "mine of m, content abababababab: 2 of 2 workers serve it\n"


def test_a_worker_that_does_not_serve_it_is_named_and_the_status_says_so(
    admin: ScriptedAdmin, flags: list[str], capsys: Capture
) -> None:
    admin.adapters = [adapter(SERVED, FAILED, pb.WorkerAdapter.STATE_UNSPECIFIED)]
    assert main(["adapters", "load", "mine", "/a", *flags]) == ExitCode.UNAVAILABLE
    said = capsys.readouterr()
    assert "1 of 3 workers" in said.out
    assert "mine is not served by worker-1: it was trained for another model" in said.err
    assert "mine is not served by worker-2: it has said nothing yet" in said.err


def test_a_refused_folder_is_one_line(admin: ScriptedAdmin, flags: list[str], capsys: Capture) -> None:
    assert main(["adapters", "load", "mine", "/nowhere", *flags]) == ExitCode.REFUSED
    assert capsys.readouterr().err == "stemcache: INVALID_ARGUMENT: /nowhere is no folder\n"


def test_list_shows_a_line_for_each(admin: ScriptedAdmin, flags: list[str], capsys: Capture) -> None:
    admin.adapters = [adapter(SERVED, FAILED)]
    assert main(["adapters", "list", *flags]) == ExitCode.OK
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["ADAPTER", "MODEL", "WORKERS", "TENANTS", "LOADED", "CONTENT", "FOLDER"]
    assert row.split() == ["mine", "m", "1/2", "acme", "2023-11-14", "22:13:20Z", "abababababab", "/adapters/mine"]
    assert main(["adapters", "list", "--json", *flags]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)[0]["workers"][1]["error"] == "it was trained for another model"


def test_unload_names_who_has_not_let_go_yet(admin: ScriptedAdmin, flags: list[str], capsys: Capture) -> None:
    admin.adapters = [adapter(SERVED)]
    assert main(["adapters", "unload", "mine", *flags]) == ExitCode.OK
    said = capsys.readouterr()
    assert said.out == "unloaded mine\n"
    assert said.err.startswith("worker-1 has not said yet")
    assert main(["adapters", "unload", "other", *flags]) == ExitCode.REFUSED


def test_up_takes_adapters_for_all_and_for_some(tmp_path: Path) -> None:
    parsed = build_parser().parse_args(["up", "--adapter", "a=/x", "--adapter", "b@acme,globex=/y=z"])
    assert [parse_adapter(each) for each in parsed.adapter] == [
        AdapterOption("a", Path("/x"), ()),
        AdapterOption("b", Path("/y=z"), ("acme", "globex")),
    ]


@pytest.mark.parametrize("text", ["a", "a=", "=/x", "a@=/x", "a@acme,=/x", "a b=/x", "@acme=/x", ""])
def test_what_names_no_adapter_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_adapter(text)


def test_a_bad_folder_is_refused_before_anything_starts(tmp_path: Path) -> None:
    good = write_folder(tmp_path / "good", plain_tensors())
    check_adapters([AdapterOption("a", good, ())])
    with pytest.raises(InvalidRequestError, match="is no folder"):
        check_adapters([AdapterOption("a", good, ()), AdapterOption("b", tmp_path / "none", ())])
