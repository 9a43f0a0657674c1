"""`stemcache usage` and `stemcache quota advise` against a server with scripted answers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from stemcache.admin.v1 import usage_pb2 as admin_pb
from stemcache.admin.v1 import usage_pb2_grpc as admin_rpc
from stemcache.v1 import usage_pb2 as pb
from stemcache.v1 import usage_pb2_grpc as rpc

from services.cli.exit_codes import ExitCode
from services.cli.main import main

Capture = pytest.CaptureFixture[str]


def counts(prompt: int) -> pb.UsageCounts:
    return pb.UsageCounts(
        requests=pb.RequestCounts(completed=3, refused=1),
        prompt_tokens=prompt,
        cached_tokens=prompt // 2,
        cached_by_tier=pb.CachedTokenCounts(device_tokens=prompt // 2),
        computed_tokens=prompt - prompt // 2,
        generated_tokens=7,
        saved_s=1.25,
        block_seconds=pb.BlockSeconds(device_block_s=7_200.0),
    )


class ScriptedUsage(admin_rpc.UsageServiceServicer):
    def __init__(self) -> None:
        self.requests: list[admin_pb.GetUsageRequest] = []
        evictions = admin_pb.EvictionCounts(evicted_blocks=9, suffered_blocks=4, caused_blocks=2)
        hour = admin_pb.TenantUsageHour(
            start_time=Timestamp(seconds=1_699_999_200), counts=counts(100), evictions=evictions
        )
        self.tenants = [
            admin_pb.TenantUsage(tenant=name, counts=counts(100), evictions=evictions, hours=[hour])
            for name in ("acme", "globex")
        ]
        self.advice = admin_pb.AdviseQuotaResponse(
            base=admin_pb.QuotaPoint(share=0.25, blocks=100, hit_share=0.40),
            guaranteed=True,
            used_share=0.3,
            points=[
                admin_pb.QuotaPoint(share=0.125, blocks=50, hit_share=0.20),
                admin_pb.QuotaPoint(share=0.30, blocks=120, hit_share=0.47),
                admin_pb.QuotaPoint(share=1.0, blocks=400, hit_share=0.60),
            ],
            enough=admin_pb.QuotaPoint(share=0.6, blocks=240, hit_share=0.57),
            asked_blocks=50_000,
            found_share=0.43,
            workers=2,
        )

    def GetUsage(self, request: admin_pb.GetUsageRequest, context: grpc.ServicerContext) -> admin_pb.GetUsageResponse:  # noqa: N802
        self.requests.append(request)
        found = [each for each in self.tenants if request.tenant in ("", each.tenant)]
        return admin_pb.GetUsageResponse(tenants=found, total=counts(100 * len(found)))

    def AdviseQuota(  # noqa: N802
        self, request: admin_pb.AdviseQuotaRequest, context: grpc.ServicerContext
    ) -> admin_pb.AdviseQuotaResponse:
        return self.advice


class OwnUsage(rpc.UsageServiceServicer):
    def GetUsage(self, request: pb.GetUsageRequest, context: grpc.ServicerContext) -> pb.GetUsageResponse:  # noqa: N802
        assert dict(context.invocation_metadata())["authorization"] == "Bearer k"
        return pb.GetUsageResponse(total=counts(10), hours=[pb.UsageHour(counts=counts(10))])


@pytest.fixture
def usage() -> ScriptedUsage:
    return ScriptedUsage()


@pytest.fixture
def address(usage: ScriptedUsage) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    admin_rpc.add_UsageServiceServicer_to_server(usage, server)
    rpc.add_UsageServiceServicer_to_server(OwnUsage(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(grace=None).wait(timeout=5)


@pytest.fixture
def flags(address: str, tmp_path: Path) -> list[str]:
    token = tmp_path / "token"
    token.write_text("operator-token")
    token.chmod(0o600)
    return ["--admin-address", address, "--admin-token-file", str(token)]


def test_all_tenants_are_told_with_their_sum(flags: list[str], capsys: Capture) -> None:
    assert main(["usage", *flags]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["TENANT", "acme", "globex", "all"]
    assert "50 (50%)" in lines[1]
    assert "9 (for others 4, others' 2)" in lines[1]
    assert " 2.0 " in lines[1], "block hours"


def test_times_are_sent_as_they_are_meant(flags: list[str], usage: ScriptedUsage) -> None:
    arguments = ["--tenant", "acme", "--since", "2030-01-31", "--until", "2030-01-31T10:00+02:00"]
    assert main(["usage", *arguments, *flags]) == ExitCode.OK
    (request,) = usage.requests
    assert request.tenant == "acme"
    assert request.since_time.ToJsonString() == "2030-01-31T00:00:00Z"
    assert request.until_time.ToJsonString() == "2030-01-31T08:00:00Z"
    assert main(["usage", "--since", "2h", *flags]) == ExitCode.OK
    assert usage.requests[-1].HasField("since_time")
    assert not usage.requests[-1].HasField("until_time")


def test_a_time_that_is_none_is_refused(flags: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["usage", "--since", "soon", *flags])
    assert "no point in time" in capsys.readouterr().err


def test_a_key_is_not_left_unused(flags: list[str], usage: ScriptedUsage, capsys: Capture) -> None:
    assert main(["usage", "--tenant", "globex", "--key", "sc-acme", *flags]) == ExitCode.REFUSED
    assert "add --own" in capsys.readouterr().err
    assert usage.requests == []


def test_csv_and_json_have_all_counts(flags: list[str], capsys: Capture) -> None:
    assert main(["usage", "--csv", *flags]) == ExitCode.OK
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["tenant"] for row in rows] == ["acme", "globex"]
    assert (rows[0]["prompt_tokens"], rows[0]["cached_device_tokens"], rows[0]["caused_blocks"]) == ("100", "50", "2")
    assert main(["usage", "--csv", "--by-hour", *flags]) == ExitCode.OK
    assert "2023-11-14 22:00:00Z" in capsys.readouterr().out
    assert main(["usage", "--json", *flags]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["tenants"][1]["hours"][0]["counts"]["generated_tokens"] == 7


def test_a_tenant_asks_by_its_key(address: str, capsys: Capture) -> None:
    assert main(["usage", "--own", "--key", "k", "--address", address]) == ExitCode.OK
    assert "this tenant" in capsys.readouterr().out
    assert main(["usage", "--own", "--tenant", "acme", "--key", "k"]) == ExitCode.REFUSED


def test_advice_says_what_more_room_brings(flags: list[str], capsys: Capture) -> None:
    assert main(["quota", "advise", "acme", *flags]) == ExitCode.OK
    first, second, *table = capsys.readouterr().out.splitlines()
    assert first == (
        "acme: hits 40% with the 25.0% guaranteed; with 20% more, hits +7.0 points; 60.0% of the blocks would bring "
        "95% of what all of them could"
    )
    assert "found 43%" in second
    assert [row.split()[0] for row in table] == ["SHARE", "12.5%", "30.0%", "100.0%"]


def test_advice_tells_where_little_stands_behind_it(flags: list[str], usage: ScriptedUsage, capsys: Capture) -> None:
    usage.advice.asked_blocks, usage.advice.missing_workers = 12, 1
    assert main(["quota", "advise", "acme", *flags]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "only 12 blocks" in out
    assert "1 of 3 workers did not answer" in out
    usage.advice.asked_blocks = 0
    assert main(["quota", "advise", "acme", *flags]) == ExitCode.OK
    assert "nothing was asked for lately" in capsys.readouterr().out
