"""`stemcache plan`: what it prints, what it says to bad input."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from services.cli.exit_codes import ExitCode
from services.cli.main import main
from services.cli.rates import bytes_per_s, flops, tokens
from tests.support import published_configs as published


@pytest.fixture
def oss(tmp_path: Path) -> str:
    file = tmp_path / "gpt-oss-120b.json"
    file.write_text(json.dumps(published.GPT_OSS_120B))
    return str(file)


def plan_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    main(["plan", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_everything_for_people(oss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tenants = tmp_path / "tenants.json"
    tenants.write_text('{"acme": {"min": "25%", "max": "50%"}, "globex": {"strict": "20%"}}')
    options = ["--gpu-memory", "141GiB", "--context", "128k", "--requests", "64", "--tenants", str(tenants)]
    speeds = ["--memory-bandwidth", "4.8TB/s", "--link", "50GB/s", "--compute", "400TFLOPS", "--used", "1000"]
    assert main(["plan", oss, *options, *speeds]) == ExitCode.REFUSED
    out = capsys.readouterr().out
    for words in (
        "2 × 18 layers × 8 KV heads × 64 wide × 2 B = 36.0 KiB per token",
        "36.0 KiB per token + 4.5 MiB fixed",
        "72.0 KiB per token if sliding layers kept everything",
        "131,072 tokens take 4.5 GiB",
        "60.7 GiB (counted from config.json, bfloat16, quantised): 116.83 billion, 5.13 billion for one token",
        "64 requests of 131,072 tokens do not fit. Each of these alone would do:",
        "in Valkey 9 for one worker's blocks",
        "loading is the faster above",
        "globex",
    ):
        assert words in out


def test_what_fits_ends_well(oss: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", oss, "--gpu-memory", "141GiB", "--context", "32k", "--requests", "4"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "do not fit" not in out
    assert "add --memory-bandwidth" in out


def test_json_for_programs(oss: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = plan_json(capsys, oss, "--gpu-memory", "141GiB", "--context", "128k", "--requests", "2")
    assert report["kv"]["bytes_per_token"] == 36 << 10
    assert report["kv"]["fixed_bytes"] == 9 << 19
    assert report["kv"]["kinds"][1]["window"] == 128
    assert report["fit"]["fits"] is True
    assert report["fit"]["pool"]["num_blocks"] > 0
    assert [each["context"] for each in report["decode"]][:5] == [1024, 4096, 16384, 65536, 131072]


def test_without_a_device_it_tells_the_model(oss: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = plan_json(capsys, oss)
    assert report["load"] == {"num_requests": 1, "context": 8192, "used": 8192, "shared_prefix": 0}
    assert (report["fit"], report["index"], report["tenants"]) == (None, None, [])


def test_tenants_as_the_running_system_lists_them(oss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tenants.json"
    tiers = [{"tier": "device", "min": 0.25, "min_in_force": 0.25, "max": 1.0}]
    quota = {"tiers": tiers, "weight": 1.0, "max_pinned": 0.1}
    file.write_text(json.dumps([{"name": "acme", "uuid": "…", "quota": quota, "limits": {}}]))
    report = plan_json(capsys, oss, "--gpu-memory", "141GiB", "--tenants", str(file))
    num_blocks = report["fit"]["pool"]["num_blocks"]
    (acme,) = report["tenants"]
    assert (acme["tenant"], acme["guaranteed_blocks"], acme["max_blocks"]) == ("acme", num_blocks // 4, num_blocks)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("7", "holds no quotas"),
        ('{"acme": {"minimum": 0.2}}', "it may have max, max_pinned, min, strict, weight"),
        ('{"acme": {"min": "lots"}}', "write 25% or 0.25"),
        ('{"acme": {"min": [1]}}', "is no share"),
        ('{"acme": {"strict": 0.2, "min": 0.1}}', "strict sets min and max at once"),
        ('{"acme": {"weight": "2"}}', "weight is '2'"),
        ('{"a": {"min": 0.7}, "b": {"min": 0.7}}', "only 100 %"),
        ('[{"uuid": "x"}]', "without a name"),
        ('[{"name": "x"}]', "has no quota"),
    ],
)
def test_tenants_that_cannot_be(
    oss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    file = tmp_path / "tenants.json"
    file.write_text(content)
    assert main(["plan", oss, "--gpu-memory", "141GiB", "--tenants", str(file)]) == ExitCode.REFUSED
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("stemcache: error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tenants", "x.json"], "add it"),
        (["--context", "200k"], "204,800 tokens of context, but gpt-oss-120b knows 131,072"),
        (["--gpu-memory", "1GiB", "--tenants", "absent.json"], "cannot be read"),
    ],
)
def test_what_cannot_be_planned(
    oss: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["plan", oss, *arguments]) == ExitCode.REFUSED
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", [("--context", "0"), ("--requests", "-1"), ("--gpu-memory", "141GB"), ("--kv-dtype", "int3")]
)
def test_bad_usage_names_the_option(oss: str, capsys: pytest.CaptureFixture[str], option: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["plan", oss, *option])
    assert exit_.value.code == ExitCode.USAGE
    assert option[0] in capsys.readouterr().err


def test_speeds_and_tokens() -> None:
    assert (bytes_per_s("4.8TB/s"), bytes_per_s("64 gb/s"), bytes_per_s("1GiB/s")) == (4.8e12, 64e9, float(1 << 30))
    assert (flops("400TFLOPS"), flops("1.2PFLOP/s")) == (400e12, 1.2e15)
    assert (tokens("32k"), tokens("1000"), tokens("1.5k"), tokens("1M")) == (32_768, 1000, 1536, 1 << 20)


@pytest.mark.parametrize(
    ("parse", "text"), [(bytes_per_s, "4.8TB"), (bytes_per_s, "0GB/s"), (flops, "9"), (tokens, "9z")]
)
def test_what_is_neither(parse: Any, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no"):
        parse(text)
