"""`stemcache replay`: what it prints, and what it says to bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cache_store.errors import InvalidRequestError
from cache_store.tier_kind import TierKind
from services.cli.exit_codes import ExitCode
from services.cli.main import main
from services.cli.replay_spec import parse_capacity, parse_share, parse_tenant


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Twenty requests of four sessions."""
    path = tmp_path / "chat.jsonl"
    lines = []
    for turn in range(5):
        for session in range(4):
            ids = [0, *range(100 * session + 1, 100 * session + 2 + turn)]
            lines.append(
                {
                    "timestamp": 1000 * turn + session,
                    "input_length": 512 * len(ids),
                    "output_length": 9,
                    "hash_ids": ids,
                }
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_table_for_people(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(trace), "--capacity", "100%", "--capacity", "3", "--oracle"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "chat: 20 requests" in out
    assert out.count("optimum") == 2
    assert "blocks of prompts per second of processor time" in out


def test_json_for_programs(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = [f"a={trace},min=25%", f"b={trace},min=25%,rate=2,sessions=0/2", "--scanner", "16,min=25%"]
    assert main(["replay", *spec, "--capacity", "50%", "--json"]) == ExitCode.OK
    (report,) = json.loads(capsys.readouterr().out)
    assert [tenant["name"] for tenant in report["tenants"]] == ["a", "b", "scanner"]
    assert report["tenants"][0]["num_requests"] == 20
    assert report["tenants"][1]["num_requests"] == 10
    assert report["tenants"][0]["isolation"]["worst"] >= 1.0
    assert report["tenants"][2]["hit_tokens"] == 0


def test_hits_and_writes_by_tier(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiers = ["--capacity", "6", "--host-factor", "1", "--disk-factor", "3"]
    assert main(["replay", str(trace), *tiers]) == ExitCode.OK
    out = capsys.readouterr().out
    assert [line.split()[2] for line in out[out.index("TIER") :].splitlines()[1:4]] == ["device", "host", "disk"]
    assert main(["replay", str(trace), *tiers, "--json"]) == ExitCode.OK
    (report,) = json.loads(capsys.readouterr().out)
    host, disk = report["tiers"]
    assert (host["num_blocks"], disk["num_blocks"]) == (6, 18)
    assert host["written_blocks"] >= disk["written_blocks"] > 0
    (tenant,) = report["tenants"]
    assert tenant["host_hit_rate"] == host["hit_rate"] > 0
    assert tenant["disk_hit_rate"] == disk["hit_rate"] > 0
    assert tenant["hit_rate"] > host["hit_rate"] + disk["hit_rate"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.jsonl"], "missing.jsonl cannot be read: No such file"),
        (["{trace}", "{trace}"], "two traces have one name"),
        (["{trace},speed=3"], "none of max, min, rate, sessions, weight=VALUE"),
        (["{trace},sessions=5/5"], "0/5 is the first of five"),
        (["{trace}", "--capacity", "1GiB"], "needs --kv-bytes-per-token"),
        (["{trace}", "--capacity", "0%"], "can be replayed"),
        (["{trace}", "--capacity", "much"], "a number is needed"),
        (["{trace}", "--scanner", "0"], "take one above 0"),
        (["{trace},min=60%", "--scanner", "1,min=60%"], "add up to 120"),
        (["{trace}", "--windows", "0"], "it is 1 to 10000"),
        (["{trace}", "--windows", "1000000000"], "it is 1 to 10000"),
        (["{trace}", "--capacity", "1e9%"], "can be replayed"),
        (["{trace}", "--capacity", "nan%"], "a number is needed"),
        (["{trace}", "--block-tokens", "0"], "at least 1"),
        (["{trace}", "--session-ends", "120%"], "a share is 0 to 1"),
        (["{trace}", "--useless-density", "nan"], "a number is needed"),
        (["{trace}", "--block-tokens", "100"], "no multiple"),
        (["{trace}", "--disk-factor", "2"], "give --host-factor too"),
        (["{trace}", "--host-factor", "-1"], "no number of blocks"),
        (["{trace}", "--host-factor", "1e12"], "no number of blocks"),
        (["{trace}", "--host-factor", "all"], "a number is needed"),
    ],
)
def test_bad_input_is_told_in_one_line(
    trace: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *(each.replace("{trace}", str(trace)) for each in arguments)]) == ExitCode.REFUSED
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_tenant_is_a_path_with_settings() -> None:
    spec = parse_tenant("chat=some/dir/trace.jsonl.zst,min=25%,max=0.5,weight=2,rate=4,sessions=1/5")
    assert (spec.name, spec.path, spec.rate, spec.sessions) == ("chat", "some/dir/trace.jsonl.zst", 4.0, (1, 5))
    share = spec.quota.share(TierKind.DEVICE)
    assert (share.minimum, share.maximum, spec.quota.weight) == (0.25, 0.5, 2.0)
    assert parse_tenant("some/dir/trace.jsonl.zst").name == "trace"


def test_a_capacity_is_a_share_a_size_or_a_count() -> None:
    assert parse_capacity("5%", 1000, 0) == 50
    assert parse_capacity("1MiB", 1000, 1024) == 1024
    assert parse_capacity("2GB", 1000, 1e6) == 2000
    assert parse_capacity("17", 1000, 0) == 17
    with pytest.raises(InvalidRequestError):
        parse_share("min", "a lot")
