"""`stemcache cache` against a server with scripted answers: what it sends, prints and returns."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from stemcache.v1 import cache_pb2 as pb

from services.cli.exit_codes import ExitCode
from services.cli.main import main
from tests.support.scripted_api import Failure, ScriptedApi

Capture = pytest.CaptureFixture[str]


def run(api: ScriptedApi, action: str, *arguments: str) -> int:
    return main(["cache", action, "--address", api.address, "--key", "k", *arguments])


def test_lookup(api: ScriptedApi, capsys: Capture) -> None:
    assert run(api, "lookup", "--model", "m", "--partition", "p", "hi") == ExitCode.OK
    assert capsys.readouterr().out == "99 of 100 prompt tokens are cached (6 full blocks)\n"
    (request,) = api.cache_requests
    assert isinstance(request, pb.LookupPrefixRequest)
    assert (request.model, request.partition, request.prompt.text) == ("m", "p", "hi")


def test_warm(api: ScriptedApi, capsys: Capture) -> None:
    assert run(api, "warm", "--system", "be brief", "hi") == ExitCode.OK
    assert capsys.readouterr().out == "computed 68 of 100 prompt tokens; the others were cached\n"
    (request,) = api.cache_requests
    assert isinstance(request, pb.WarmPrefixRequest)
    assert [each.role for each in request.prompt.chat.messages] == ["system", "user"]


def test_pin_prints_the_id_that_unpin_takes(api: ScriptedApi, capsys: Capture) -> None:
    assert run(api, "pin", "--ttl", "10m", "--name", "n", "--token-ids", "1,2") == ExitCode.OK
    pin_id = capsys.readouterr().out.strip()
    (request,) = api.cache_requests
    assert isinstance(request, pb.PinPrefixRequest)
    assert (request.ttl.ToSeconds(), request.display_name) == (600, "n")
    assert request.prompt.token_ids.packed == b"\1\0\0\0\2\0\0\0"
    assert run(api, "unpin", pin_id) == ExitCode.OK
    assert capsys.readouterr().out == "ended\n"
    assert run(api, "unpin", "other") == ExitCode.OK
    assert capsys.readouterr().out == "there was no such pin\n"


def test_pins(api: ScriptedApi, capsys: Capture) -> None:
    api.pin.expire_time.FromSeconds(1_700_000_000)
    assert run(api, "pins") == ExitCode.OK
    headings, row = capsys.readouterr().out.splitlines()
    assert headings.split() == ["PIN", "NAME", "MODEL", "BLOCKS", "WORKERS", "SIZE", "ENDS"]
    assert row.split() == ["pin-1", "n", "m", "6", "0", "3.0", "MiB", "2023-11-14", "22:13:20Z"]
    assert run(api, "pins", "--json") == ExitCode.OK
    (document,) = json.loads(capsys.readouterr().out)
    assert document["pin_id"] == "pin-1"
    assert document["num_blocks"] == 6


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--everything",), pb.PurgeCacheRequest(everything=True)),
        (("--partition", ""), pb.PurgeCacheRequest(partition="")),
        (("--model", "m"), pb.PurgeCacheRequest(model="m")),
    ],
)
def test_purge(api: ScriptedApi, capsys: Capture, flags: tuple[str, ...], message: pb.PurgeCacheRequest) -> None:
    assert run(api, "purge", *flags) == ExitCode.OK
    assert api.cache_requests == [message]
    assert capsys.readouterr().out.splitlines() == [
        "purged 10 blocks (5 device, 3 host, 2 disk); 2 workers have forgotten it",
        "1 of them are in the middle of a step: what they had is not counted",
        "1 workers did not answer: they forget it before they serve the tenant again",
        "complete everywhere at 2023-11-14 22:13:30Z at the latest",
    ]
    assert run(api, "purge", "--json", *flags) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["purged_blocks"] == {"device": 5, "host": 3, "disk": 2}


def test_a_prompt_from_a_file_or_standard_input(
    api: ScriptedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Grüße\n", encoding="utf-8")
    run(api, "lookup", "--file", str(file))
    monkeypatch.setattr("sys.stdin", io.StringIO("piped"))
    run(api, "lookup", "-")
    texts = [each.prompt.text for each in api.cache_requests if isinstance(each, pb.LookupPrefixRequest)]
    assert texts == ["Grüße\n", "piped"]


def test_a_file_that_is_no_text_or_not_there_is_refused_in_one_line(
    api: ScriptedApi, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "prompt.bin"
    file.write_bytes(b"\xff\xfe")
    for path in (file, tmp_path / "absent"):
        assert run(api, "lookup", "--file", str(path)) == ExitCode.REFUSED
        error = capsys.readouterr().err
        assert str(path) in error
        assert error.count("\n") == 1
    assert api.cache_requests == []


def test_a_refusal_is_one_line_with_what_to_do(api: ScriptedApi, capsys: Capture) -> None:
    api.failures = [Failure(9, "nothing of this prompt is cached; warm it first")]
    assert run(api, "pin", "--ttl", "1h", "hi") == ExitCode.REFUSED
    assert capsys.readouterr().err == (
        "stemcache: FAILED_PRECONDITION: nothing of this prompt is cached; warm it first\n"
    )
