"""`stemcache tenants quota` against a server with scripted answers: what it sends, prints and refuses."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from stemcache.admin.v1 import admin_pb2 as pb

from services.cli.exit_codes import ExitCode
from services.cli.main import main
from services.cli.quota import limit, share
from tests.support.scripted_admin import ScriptedAdmin

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def at(admin: ScriptedAdmin, tmp_path: Path) -> list[str]:
    token = tmp_path / "token"
    token.write_text("operator\n")
    token.chmod(0o600)
    return ["--admin-address", admin.address, "--admin-token-file", str(token)]


@pytest.mark.parametrize(
    ("text", "value"), [("25%", 0.25), ("0.25", 0.25), ("25 %", 0.25), ("100%", 1.0), ("0", 0.0), ("1", 1.0)]
)
def test_a_share_is_a_percentage_or_a_fraction(text: str, value: float) -> None:
    assert share(text) == value


@pytest.mark.parametrize("text", ["25", "101%", "-1%", "nan", "inf", "", "%", "a", "1e9"])
def test_what_is_no_share_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write"):
        share(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "many", "٣", "4294967296", "9" * 5000])
def test_what_is_no_limit_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write a number from 1 to 4294967295, or `none`"):
        limit(text)


def test_what_is_named_is_sent_and_nothing_else(admin: ScriptedAdmin, at: list[str]) -> None:
    assert main(["tenants", "create", "acme", "--weight", "2", *at]) == ExitCode.OK
    flags = ["--min", "25%", "--max", "0.5", "--max-pinned", "0", "--requests-in-flight", "8", "--tokens-per-s", "none"]
    flags += ["--audit-share", "1%"]
    assert main(["tenants", "quota", "acme", *flags, *at]) == ExitCode.OK
    assert admin.terms == [
        pb.CreateTenantRequest(name="acme", weight=2.0),
        pb.SetTenantQuotaRequest(
            tenant="acme",
            tiers=[pb.TierShare(tier="device", min=0.25, max=0.5)],
            max_pinned=0.0,
            requests_in_flight=8,
            tokens_per_s=0,
            audit_share=0.01,
        ),
    ]


def test_strict_is_min_and_max(admin: ScriptedAdmin, at: list[str], capsys: Capture) -> None:
    main(["tenants", "create", "acme", "--strict", "20%", *at])
    assert admin.terms[0].tiers == [pb.TierShare(tier="device", min=0.2, max=0.2)]
    assert main(["tenants", "quota", "acme", "--strict", "20%", "--min", "10%", *at]) == ExitCode.REFUSED
    assert "leave --min and --max out" in capsys.readouterr().err


def test_without_flags_everything_is_shown_and_nothing_sent(
    admin: ScriptedAdmin, at: list[str], capsys: Capture
) -> None:
    main(["tenants", "create", "acme", *at])
    admin.tenants["acme"].quota.tiers[0].min = 0.5
    admin.tenants["acme"].quota.tiers[0].min_in_force = 0.25
    admin.tenants["acme"].limits.tokens_per_s = 900
    capsys.readouterr()
    assert main(["tenants", "quota", "acme", *at]) == ExitCode.OK
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["device:", "guaranteed  50% (25% in force)"] in lines
    assert ["max", "pinned          10%"] in lines
    assert ["hits", "audited        0.1%"] in lines
    assert ["requests", "in flight  none"] in lines
    assert ["tokens", "per second   900"] in lines
    assert len(admin.terms) == 1


def test_json_gives_all_fields(admin: ScriptedAdmin, at: list[str], capsys: Capture) -> None:
    main(["tenants", "create", "acme", *at])
    capsys.readouterr()
    assert main(["tenants", "quota", "acme", "--json", *at]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["quota"]["tiers"][0] == {"tier": "device", "min": 0.0, "max": 1.0, "min_in_force": 0.0}
    assert document["limits"] == {"requests_in_flight": None, "tokens_per_s": None}


def test_a_strict_tenant_is_told_apart_in_the_list(admin: ScriptedAdmin, at: list[str], capsys: Capture) -> None:
    main(["tenants", "create", "acme", *at])
    share_of = admin.tenants["acme"].quota.tiers[0]
    share_of.min = share_of.max = share_of.min_in_force = 0.25
    capsys.readouterr()
    assert main(["tenants", "list", *at]) == ExitCode.OK
    assert "25% strict  25%" in capsys.readouterr().out


def test_a_tenant_that_is_not_there_is_one_line(at: list[str], capsys: Capture) -> None:
    assert main(["tenants", "quota", "acme", *at]) == ExitCode.REFUSED
    assert "no tenant 'acme'" in capsys.readouterr().err
    assert main(["tenants", "quota", "acme", "--weight", "2", *at]) == ExitCode.REFUSED
    assert capsys.readouterr().err == "stemcache: NOT_FOUND: there is no tenant 'acme'\n"
