"""Checks of a cluster that runs: each fault is found, says what comes of it and what to do; a sound one has none."""

from __future__ import annotations

import dataclasses
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from cache_store.domain import FormatDigest
from cache_store.errors import InvalidRequestError
from cache_store.registry import PROTOCOL_VERSION, WorkerRecord
from cache_store.tls_files import Component, TlsFiles, tls_name
from services.certs.authority import make_certificate
from services.certs.folder import CertificateFolder, Step
from services.cli.main import main
from services.cluster import cluster_checks
from services.cluster.cluster_checks import Places, check_certificates, check_clocks, check_reach, check_workers
from services.cluster.findings import Finding, Level
from services.tls import Trust, component_trust
from tests.support.worker_records import worker_record

NOW_S = 1_800_000_000.0


def faults(findings: Iterator[Finding] | Sequence[Finding]) -> list[Finding]:
    """What is not well; each says what to do."""
    found = [each for each in findings if each.level is not Level.OK]
    assert all(each.advice and len(each.found.split()) > 5 for each in found), found
    return found


def workers(num: int = 2) -> list[WorkerRecord]:
    return [dataclasses.replace(worker_record(f"worker-{at}"), clock_unix_s=NOW_S) for at in range(num)]


def test_a_sound_cluster_has_no_faults() -> None:
    assert faults(check_workers(workers())) == []
    assert faults(check_clocks(workers(), NOW_S, NOW_S)) == []


def test_no_worker_is_a_fault() -> None:
    [found] = faults(list(check_workers([])))
    assert "no worker is in the registry" in found.found


def test_another_version_is_told_by_its_name() -> None:
    one, other = workers()
    other = dataclasses.replace(other, protocol_version=PROTOCOL_VERSION + 1)
    [found] = faults(check_workers([one, other]))
    assert found.level is Level.PROBLEM
    assert f"worker-1 speaks protocol version {PROTOCOL_VERSION + 1}, this is {PROTOCOL_VERSION}" in found.found


@pytest.mark.parametrize("change", [{"kv_format": FormatDigest(b"x" * 16)}, {"tokenizer_digest": "ab" * 16}])
def test_other_weights_under_one_name_are_told(change: dict[str, object]) -> None:
    one, other = workers()
    [found] = faults(check_workers([one, dataclasses.replace(other, **change)]))
    assert found.level is Level.PROBLEM
    assert "worker-0; worker-1" in found.found
    renamed = dataclasses.replace(other, model="another", **change)
    assert faults(check_workers([one, renamed])) == []


@pytest.mark.parametrize(("skew_s", "words"), [(5.0, "5.0 s ahead of"), (-30.0, "30.0 s behind")])
def test_a_clock_that_is_wrong_is_told(skew_s: float, words: str) -> None:
    one, other = workers()
    other = dataclasses.replace(other, clock_unix_s=NOW_S + skew_s)
    [found] = faults(check_clocks([one, other], NOW_S, NOW_S))
    assert f"worker-1 is {words} the Redis server" in found.found
    [own] = faults(check_clocks([one], NOW_S, NOW_S + skew_s))
    assert "this machine" in own.found


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    made = CertificateFolder(tmp_path / "certs")
    made.write({}, timedelta(days=90), Step.KEEP)
    return made


@contextmanager
def encrypted_server(files: TlsFiles) -> Iterator[str]:
    """Shows a certificate to whoever has one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def certificate_faults(address: str, trust: Trust | None) -> list[Finding]:
    worker = dataclasses.replace(workers(1)[0], address=address)
    return faults(check_certificates(Places({}, trust=trust), [worker]))


def test_a_worker_with_its_name_is_sound(folder: CertificateFolder) -> None:
    with encrypted_server(folder.files(Component.WORKER)) as address:
        assert certificate_faults(address, component_trust(folder.files(Component.OPERATOR))) == []


def test_another_name_is_told_with_what_would_fit(folder: CertificateFolder) -> None:
    with encrypted_server(folder.files(Component.REDIS)) as address:
        [found] = certificate_faults(address, component_trust(folder.files(Component.OPERATOR)))
    assert found.level is Level.PROBLEM
    assert tls_name(Component.REDIS) in found.found
    assert tls_name(Component.WORKER) in found.advice


def test_another_authority_and_no_certificate_at_all_are_told(folder: CertificateFolder, tmp_path: Path) -> None:
    other = CertificateFolder(tmp_path / "other")
    other.write({}, timedelta(days=90), Step.KEEP)
    with encrypted_server(folder.files(Component.WORKER)) as address:
        [found] = certificate_faults(address, component_trust(other.files(Component.OPERATOR)))
    assert "not trusted" in found.found
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.listen()
        port = server.getsockname()[1]
        server.close()
        [found] = certificate_faults(f"127.0.0.1:{port}", component_trust(folder.files(Component.OPERATOR)))
    assert "no certificate is shown" in found.found
    [found] = certificate_faults("127.0.0.1:1", None)
    assert "taken to be plain" in found.found


def test_one_that_soon_ends_is_told(folder: CertificateFolder) -> None:
    folder.write({}, timedelta(days=3), Step.KEEP)
    with encrypted_server(folder.files(Component.WORKER)) as address:
        [found] = certificate_faults(address, component_trust(folder.files(Component.OPERATOR)))
    assert found.level is Level.WARNING
    assert "ends in 3 days" in found.found


def test_what_answers_to_a_tenant_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert faults(check_reach([], [address])) == []
        [found] = faults(check_reach([address], []))
        assert f"{address} answers" in found.found
    assert faults(check_reach([address], [])) == []
    [away] = faults(check_reach([], [address]))
    assert "cannot be reached" in away.advice or "cannot be reached" in away.found


def test_a_name_that_is_none_here_passes_no_check() -> None:
    [found] = faults(check_reach(["valkey.invalid"], []))
    assert found.level is Level.PROBLEM
    assert "valkey.invalid has no address here" in found.found


@pytest.mark.parametrize("place", ["127.0.0.1:99999", "127.0.0.1:x", "a:b:1", "[::1]"])
def test_what_is_no_place_is_refused(place: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not HOST:PORT"):
        list(check_reach([place], []))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--inside", "10.0.0.1"], "--inside is about a cluster"),
        (["--cluster", "--secrets", "/nowhere/at/all"], "/nowhere/at/all: there is no such folder"),
        (["--cluster", "--address", "api.example.com"], "'api.example.com' is not HOST:PORT"),
    ],
)
def test_flags_that_would_be_for_nothing_are_refused(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *flags]) != 0
    assert words in capsys.readouterr().err


def test_a_host_alone_is_tried_at_the_ports_of_what_runs_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(cluster_checks, "INSIDE_PORTS", {port: "Ray's dashboard", 1: "nothing"})
        [found] = faults(check_reach(["127.0.0.1"], []))
    assert "Ray's dashboard" in found.found


def test_too_little_shared_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster_checks.check_shared_memory(tmp_path).level is Level.OK
    monkeypatch.setattr(cluster_checks, "SHARED_MEMORY_BYTES", 1 << 60)
    [found] = faults([cluster_checks.check_shared_memory(tmp_path)])
    assert "shm_size" in found.advice
    assert faults([cluster_checks.check_shared_memory(tmp_path / "nowhere")])


def test_wildcards_stand_for_one_label(folder: CertificateFolder) -> None:
    from datetime import UTC, datetime

    from services.certs.authority import make_authority
    from services.certs.inspection import Shown

    now = datetime.now(UTC)
    assert make_certificate(make_authority(now, timedelta(1)), ["*.example.com"], now, timedelta(1)).certificate
    shown = Shown(("*.example.com", "10.0.0.1"), now)
    assert shown.fits("api.example.com")
    assert shown.fits("10.0.0.1")
    assert not shown.fits("a.b.example.com")
    assert not shown.fits("example.com")
