"""The command line against servers with scripted answers: what it sends, prints and returns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import inference_pb2 as pb

from services.cli.exit_codes import ExitCode
from services.cli.main import main
from tests.support.scripted_admin import ScriptedAdmin
from tests.support.scripted_api import Failure, ScriptedApi

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of its own, and nothing set."""
    monkeypatch.setenv("STEMCACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("STEMCACHE_API_KEY", raising=False)
    return tmp_path / "home"


def _answer(*texts: str) -> list[pb.GenerateStreamResponse]:
    started = pb.GenerateStreamResponse(started=pb.GenerationStarted())
    finished = pb.GenerateStreamResponse(finished=pb.GenerationFinished())
    deltas = [pb.GenerateStreamResponse(delta=pb.GenerationDelta(text=text)) for text in texts]
    return [started, *deltas, finished]


def test_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("stemcache 0.")


def test_generate_streams_text(api: ScriptedApi, capsys: Capture) -> None:
    api.events = _answer("Hello", ", world")
    assert main(["generate", "--address", api.address, "--key", "k", "hi"]) == ExitCode.OK
    assert capsys.readouterr().out == "Hello, world\n"
    assert api.requests[0].prompt.text == "hi"


def test_generate_sends_what_the_flags_say(api: ScriptedApi) -> None:
    flags = ["--system", "be brief", "--max-tokens", "7", "--stop", "A", "--stop", "B", "--temperature", "0.5"]
    flags += ["--cache", "bypass", "--partition", "p", "--seed", "4", "--ignore-eos", "--request-id", "r"]
    assert main(["generate", "--address", api.address, "--key", "k", *flags, "hi"]) == ExitCode.OK
    (request,) = api.requests
    assert [each.role for each in request.prompt.chat.messages] == ["system", "user"]
    sampling = request.sampling_params
    assert (sampling.max_tokens, list(sampling.stop), sampling.temperature) == (7, ["A", "B"], 0.5)
    assert (sampling.seed, sampling.ignore_eos) == (4, True)
    assert request.cache_policy.mode == pb.CachePolicy.MODE_BYPASS
    assert (request.cache_policy.partition, request.request_id) == ("p", "r")


def test_generate_sends_hints(api: ScriptedApi) -> None:
    flags = ["--session", "s-1", "--session-end", "--no-store", "--ttl", "10m"]
    assert main(["generate", "--address", api.address, "--key", "k", *flags, "hi"]) == ExitCode.OK
    policy = api.requests[0].cache_policy
    assert (policy.session_id, policy.session_end, policy.no_store) == ("s-1", True, True)
    assert policy.ttl.ToSeconds() == 600


def test_without_hints_none_are_sent(api: ScriptedApi) -> None:
    assert main(["generate", "--address", api.address, "--key", "k", "hi"]) == ExitCode.OK
    policy = api.requests[0].cache_policy
    assert policy == pb.CachePolicy(mode=pb.CachePolicy.MODE_READ_WRITE)


def test_generate_takes_token_ids(api: ScriptedApi) -> None:
    assert main(["generate", "--address", api.address, "--key", "k", "--token-ids", "1,2 3"]) == ExitCode.OK
    assert api.requests[0].prompt.token_ids.packed == b"\1\0\0\0\2\0\0\0\3\0\0\0"


def test_generate_json_gives_all_fields(api: ScriptedApi, capsys: Capture) -> None:
    assert main(["generate", "--address", api.address, "--key", "k", "--json", "hi"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "cached_tokens": 3,
        "computed_tokens": 2,
        "cached_by_tier": {"device_tokens": 0, "host_tokens": 3, "disk_tokens": 0, "peer_tokens": 0},
        "written_tokens": 0,
    }
    assert document["completions"][0]["token_ids"] == [7, 8]
    assert document["route"]["worker_id"] == "worker-0"


def test_generate_says_what_a_request_lost_to_others(
    api: ScriptedApi, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["generate", "--address", api.address, "--key", "k", "-n", "2", "hi"]) == ExitCode.OK
    summary = capsys.readouterr().err
    assert "lost 1.50 s preempted (2 times), 0.50 s to compute 300 tokens again, 0.12 s for blocks" in summary


def test_generate_tells_what_an_answer_used_where_it_is_asked_to(api: ScriptedApi, capsys: Capture) -> None:
    assert main(["generate", "--address", api.address, "--key", "k", "-v", "-n", "2", "hi"]) == ExitCode.OK
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "tokens  5 prompt: 3 cached (host 3), 2 computed; 2 made; 0 written to the cache",
        "times   route 250.0 ms, queue 0.0 ms, prefill 0.0 ms, decode 0.0 ms; waited 125.0 ms for blocks from "
        "elsewhere; preempted 2 times for 1.50 s, 300 tokens computed again in 500.0 ms",
        "route   worker-0",
    ]
    assert "tokens" not in told.out


def test_generate_tells_it_of_a_stream_too(api: ScriptedApi, capsys: Capture) -> None:
    api.events = _answer("Hello")
    api.events[0].started.route.worker_id = "worker-1"
    api.events[-1].finished.usage.prompt_tokens = 7
    assert main(["generate", "--address", api.address, "--key", "k", "-v", "hi"]) == ExitCode.OK
    told = capsys.readouterr()
    assert told.out == "Hello\n"
    assert told.err.startswith("tokens  7 prompt: 0 cached")
    assert told.err.endswith("route   worker-1\n")


def test_the_key_may_come_from_the_environment_or_a_file(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STEMCACHE_API_KEY", "from-environment")
    main(["generate", "--address", api.address, "hi"])
    assert api.metadata["authorization"] == "Bearer from-environment"
    key = tmp_path / "key"
    key.write_text("from-file\n")
    key.chmod(0o600)
    main(["generate", "--address", api.address, "--key-file", str(key), "hi"])
    assert api.metadata["authorization"] == "Bearer from-file"


def test_no_key_is_refused_with_what_to_do(api: ScriptedApi, capsys: Capture) -> None:
    assert main(["generate", "--address", api.address, "hi"]) == ExitCode.REFUSED
    assert "stemcache tenants keys create" in capsys.readouterr().err


def test_an_error_is_one_line_with_its_status(api: ScriptedApi, capsys: Capture) -> None:
    retry = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=2))
    api.failures = [Failure(code_pb2.RESOURCE_EXHAUSTED, "64 requests\nrun already", (retry,))]
    assert main(["generate", "--address", api.address, "--key", "k", "hi"]) == ExitCode.REFUSED
    error = capsys.readouterr().err
    assert error == "stemcache: RESOURCE_EXHAUSTED: 64 requests run already; try again in 2 s\n"


def test_nobody_there_is_told_apart(capsys: Capture) -> None:
    assert main(["generate", "--address", "127.0.0.1:9", "--key", "k", "hi"]) == ExitCode.UNAVAILABLE
    assert capsys.readouterr().err.startswith("stemcache: UNAVAILABLE: ")


@pytest.mark.parametrize("command", [["status"], ["tenants", "list"], ["generate", "--key", "k", "hi"]])
def test_without_a_running_system_the_command_says_how_to_start_one(command: list[str], capsys: Capture) -> None:
    assert main(command) == ExitCode.REFUSED
    error = capsys.readouterr().err
    assert "stemcache up" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["nonsense"],
        ["generate"],
        ["generate", "--max-tokens", "-1", "hi"],
        ["generate", "--token-ids", "x"],
        ["generate", "--token-ids", "4294967296"],
        ["tenants", "keys"],
    ],
)
def test_bad_usage_ends_with_its_own_status(command: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == ExitCode.USAGE


class TestAdmin:
    """Commands of the operator."""

    @pytest.fixture(autouse=True)
    def flags(self, admin: ScriptedAdmin, tmp_path: Path) -> list[str]:
        token = tmp_path / "token"
        token.write_text("operator\n")
        token.chmod(0o600)
        self.admin = admin
        self.at = ["--admin-address", admin.address, "--admin-token-file", str(token)]
        return self.at

    def test_tenants(self, capsys: Capture) -> None:
        assert main(["tenants", "create", "acme", *self.at]) == ExitCode.OK
        assert self.admin.token == "Bearer operator"
        assert main(["tenants", "list", *self.at]) == ExitCode.OK
        out = capsys.readouterr().out
        assert "acme" in out
        assert "stemcache tenants keys create acme" in out

    def test_lists_as_json(self, capsys: Capture) -> None:
        main(["tenants", "create", "acme", *self.at])
        capsys.readouterr()
        assert main(["tenants", "list", "--json", *self.at]) == ExitCode.OK
        assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["acme"]

    def test_a_new_key_is_all_that_is_printed(self, capsys: Capture) -> None:
        main(["tenants", "create", "acme", *self.at])
        capsys.readouterr()
        assert main(["tenants", "keys", "create", "acme", *self.at]) == ExitCode.OK
        assert capsys.readouterr().out == "sc-k1-secret\n"

    def test_keys_are_listed_and_revoked(self, capsys: Capture) -> None:
        main(["tenants", "create", "acme", *self.at])
        main(["tenants", "keys", "create", "acme", *self.at])
        assert main(["tenants", "keys", "revoke", "k1", *self.at]) == ExitCode.OK
        assert main(["tenants", "keys", "list", "acme", *self.at]) == ExitCode.OK
        out = capsys.readouterr().out
        assert "revoked" in out.splitlines()[-1]

    def test_delete_asks_for_yes(self, capsys: Capture) -> None:
        main(["tenants", "create", "acme", *self.at])
        assert main(["tenants", "delete", "acme", *self.at]) == ExitCode.USAGE
        assert "acme" in self.admin.tenants
        assert main(["tenants", "delete", "acme", "--yes", *self.at]) == ExitCode.OK
        assert "acme" not in self.admin.tenants

    def test_rotate(self, capsys: Capture) -> None:
        main(["tenants", "create", "acme", *self.at])
        assert main(["tenants", "rotate", "acme", *self.at]) == ExitCode.OK
        out = capsys.readouterr().out
        assert "2023-11-14 22:13:20Z" in out
        assert "worker-1: the worker is gone" in out

    def test_purge_prints_what_each_worker_said(self, capsys: Capture) -> None:
        main(["tenants", "create", "acme", *self.at])
        capsys.readouterr()
        assert main(["tenants", "purge", "acme", "--partition", "p", *self.at]) == ExitCode.OK
        assert [each.partition for each in self.admin.purges] == ["p"]
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].split() == ["worker-0", "aaaaaaaa", "forgotten", "5", "3", "2", "1"]
        assert lines[2].split() == ["worker-1", "bbbbbbbb", "pending", "?", "?", "?", "?"]
        assert lines[3].split() == ["worker-2", "cccccccc", "forgotten", "?", "?", "?", "?"]
        assert "the worker is gone" in lines[4]
        assert lines[5] == "control generation 7, complete everywhere at 2023-11-14 22:13:30Z at the latest"

    def test_a_purge_names_one_scope(self, capsys: Capture) -> None:
        for flags in ((), ("--everything", "--model", "m")):
            with pytest.raises(SystemExit) as ended:
                main(["tenants", "purge", "acme", *flags, *self.at])
            assert ended.value.code == ExitCode.USAGE
        assert not self.admin.purges

    def test_an_unknown_tenant_is_one_line(self, capsys: Capture) -> None:
        assert main(["tenants", "rotate", "acme", *self.at]) == ExitCode.REFUSED
        assert capsys.readouterr().err == "stemcache: NOT_FOUND: there is no tenant 'acme'\n"

    def test_export_and_import(self, tmp_path: Path, capsys: Capture) -> None:
        document = tmp_path / "tenants.json"
        assert main(["tenants", "export", str(document), *self.at]) == ExitCode.OK
        assert document.stat().st_mode & 0o077 == 0
        assert main(["tenants", "export", str(document), *self.at]) == ExitCode.REFUSED
        assert main(["tenants", "import", str(document), *self.at]) == ExitCode.OK
        assert "1 tenants and 2 keys" in capsys.readouterr().out

    def test_a_document_that_does_not_fit_is_refused(self, tmp_path: Path, capsys: Capture) -> None:
        document = tmp_path / "tenants.json"
        document.write_text("{}")
        assert main(["tenants", "import", str(document), *self.at]) == ExitCode.REFUSED
        assert "MAC" in capsys.readouterr().err

    def test_status_shows_workers(self, capsys: Capture) -> None:
        self.admin.status.workers.add(worker_id="worker-0", model="m", used_blocks=3, total_blocks=9)
        assert main(["status", *self.at]) == ExitCode.OK
        out = capsys.readouterr().out
        assert "worker-0" in out
        assert "3/9" in out

    def test_status_shows_pressure_and_who_uses_the_blocks(self, capsys: Capture) -> None:
        for name, used in (("worker-0", 3), ("worker-1", 4)):
            worker = self.admin.status.workers.add(worker_id=name, quota_generation=3)
            worker.pressure.lent_back_blocks, worker.pressure.preemptions = 11, 12
            worker.pressure.demoted_blocks = 13
            worker.tiers.add(tier="host", used_blocks=7, total_blocks=9, stored_blocks=5, load_block_s=0.000_25)
            worker.tenants.add(tenant="acme", guaranteed_blocks=10, max_blocks=20, used_blocks=used, waiting_requests=1)
        self.admin.status.workers[1].quota_generation = 2
        assert main(["status", *self.at]) == ExitCode.OK
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["worker-0", "11", "0", "0", "12", "0", "0", "13"] in rows
        assert ["worker-0", "host", "7/9", "5", "0", "0", "0", "0", "0.25"] in rows
        assert ["acme", "20", "40", "7", "0", "0", "0", "0", "2", "0", "0"] in rows
        assert ["worker-1", "has", "the", "quotas", "of", "generation", "2", "so", "far"] in rows
        main(["status", "--json", *self.at])
        document = json.loads(capsys.readouterr().out)
        assert document["workers"][0]["tenants"][0]["guaranteed_blocks"] == 10
        assert document["workers"][0]["pressure"]["lent_back_blocks"] == 11

    def test_status_raises_an_alarm_where_an_audit_found_something(self, capsys: Capture) -> None:
        self.admin.status.workers.add(worker_id="worker-0").audit.checked_blocks = 5
        assert main(["status", *self.at]) == ExitCode.OK
        out = capsys.readouterr().out
        assert "ALARM" not in out
        assert ["worker-0", "5", "0", "0"] in [line.split() for line in out.splitlines()]
        self.admin.status.workers[0].audit.mismatches = 2
        assert main(["status", *self.at]) == ExitCode.OK
        assert "ALARM: worker-0 has found 2 cached blocks that are not what they should be" in capsys.readouterr().out

    def test_status_tells_of_blocks_between_workers_and_who_leaves(self, capsys: Capture) -> None:
        worker = self.admin.status.workers.add(worker_id="worker-0", quota_generation=3)
        assert main(["status", *self.at]) == ExitCode.OK
        out = capsys.readouterr().out
        assert "other workers" not in out
        assert "about to leave" not in out
        worker.draining = True
        worker.peers.CopyFrom(
            admin_pb2.PeerTraffic(
                fetched_blocks=7, served_blocks=8, fetches=5, failed_fetches=2, declined_fetches=3, refused_blocks=1
            )
        )
        assert main(["status", *self.at]) == ExitCode.OK
        out = capsys.readouterr().out
        assert ["worker-0", "7", "8", "5", "2", "3", "1"] in [line.split() for line in out.splitlines()]
        assert "worker-0 takes no new requests and is about to leave" in out

    def test_drain_tells_what_came_of_it(self, capsys: Capture) -> None:
        assert main(["drain", "worker-0", "--grace", "5s", *self.at]) == ExitCode.OK
        out = capsys.readouterr().out
        assert "worker-0 has left: others took 90 blocks, 100 were cached; 2 requests go on elsewhere" in out
        assert self.admin.drains[0].grace_duration.seconds == 5
        assert main(["drain", "worker-0", "--json", *self.at]) == ExitCode.OK
        assert json.loads(capsys.readouterr().out)["moved_blocks"] == 90
        assert main(["drain", "worker-9", *self.at]) == ExitCode.REFUSED
        assert "no worker 'worker-9'" in capsys.readouterr().err

    def test_status_tells_a_degraded_or_empty_system_by_its_exit_status(self, capsys: Capture) -> None:
        assert main(["status", *self.at]) == ExitCode.UNAVAILABLE
        assert "no worker is ready" in capsys.readouterr().out
        self.admin.status.workers.add(worker_id="worker-0")
        self.admin.status.degraded = True
        self.admin.status.degraded_reasons.append(admin_pb2.DEGRADED_REASON_INDEX)
        assert main(["status", "--json", *self.at]) == ExitCode.UNAVAILABLE
        document = json.loads(capsys.readouterr().out)
        assert (document["degraded"], document["degraded_reasons"]) == (True, ["index"])
        assert main(["status", *self.at]) == ExitCode.UNAVAILABLE
        assert "degraded: the index is out of reach: routed by what was known of it" in capsys.readouterr().out

    def test_status_tells_what_the_router_knows_of_the_index_by_itself(self, capsys: Capture) -> None:
        copy = self.admin.status.index_copy
        copy.followed_workers, copy.known_workers, copy.digests, copy.domains = 3, 4, 50_000, 2
        copy.copy_lookups, copy.script_lookups, copy.failed_lookups, copy.resyncs = 70, 8, 9, 1
        main(["status", *self.at])
        out = capsys.readouterr().out
        assert "copy of the index: 3 of 4 workers followed, 50,000 blocks of 2 domains" in out
        assert "lookups: 70 by the copy, 8 by Redis, 9 without an answer; 1 resyncs" in out
