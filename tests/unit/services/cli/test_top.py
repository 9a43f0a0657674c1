"""`stemcache top --once` against an admin port with scripted answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stemcache.admin.v1 import admin_pb2 as pb

from services.cli.exit_codes import ExitCode
from services.cli.main import main
from tests.support.pictures import EVIL
from tests.support.scripted_admin import ScriptedAdmin

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def at(admin: ScriptedAdmin, tmp_path: Path) -> list[str]:
    """Flags that name the scripted port."""
    token = tmp_path / "token"
    token.write_text("operator\n")
    token.chmod(0o600)
    worker = admin.status.workers.add(worker_id="worker-0", total_blocks=9, quota_generation=3)
    worker.tenants.add(tenant=EVIL, used_blocks=4, guaranteed_blocks=3, lent_blocks=1)
    admin.status.traffic.add(tenant=EVIL, requests=2, prompt_tokens=100, device_tokens=50, host_tokens=10)
    return ["--admin-address", admin.address, "--admin-token-file", str(token)]


def test_once_prints_a_picture(at: list[str], capsys: Capture) -> None:
    assert main(["top", "--once", *at]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "hit rate 60 % since the router's start" in out
    assert "worker-0" in out
    assert "\x1b" not in out


def test_once_as_json_has_all_of_it(at: list[str], capsys: Capture) -> None:
    assert main(["top", "--once", "--json", *at]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    (tenant,) = document["tenants"]
    assert (tenant["name"], tenant["hit_rate"]) == (EVIL, 0.6)
    (device,) = tenant["tiers"]
    assert (device["used_blocks"], device["guaranteed_blocks"], device["lent_blocks"]) == (4, 3, 1)
    assert document["workers"][0]["tiers"] == [{"tier": "device", "used_blocks": 0, "total_blocks": 9}]


def test_a_degraded_system_is_told_by_the_exit_status(at: list[str], admin: ScriptedAdmin, capsys: Capture) -> None:
    admin.status.degraded_reasons.append(pb.DEGRADED_REASON_INDEX)
    assert main(["top", "--once", *at]) == ExitCode.UNAVAILABLE
    assert "! degraded: index out of reach" in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "advice"), [([], "--once prints one picture"), (["--json"], "give --once")])
def test_without_a_terminal_it_says_what_would_work(
    flags: list[str], advice: str, at: list[str], capsys: Capture
) -> None:
    assert main(["top", *flags, *at]) == ExitCode.REFUSED
    assert advice in capsys.readouterr().err
