"""Certificates in a folder: who is trusted when, and what is refused."""

from __future__ import annotations

import stat
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from cache_store.errors import InvalidRequestError, PreconditionError
from cache_store.tls_files import Component, Renewal, TlsFiles, tls_name
from services.certs.folder import CertificateFolder, Step

DAY = timedelta(days=1)


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    made = CertificateFolder(tmp_path / "certs")
    made.write({}, DAY, Step.KEEP)
    return made


def is_trusted(certificate: bytes, authorities: bytes, name: str) -> bool:
    store = Store(x509.load_pem_x509_certificates(authorities))
    verifier = PolicyBuilder().store(store).build_server_verifier(x509.DNSName(name))
    try:
        verifier.verify(x509.load_pem_x509_certificate(certificate), [])
    except VerificationError:
        return False
    return True


def trusts(files: TlsFiles, by: bytes, component: Component = Component.ROUTER) -> bool:
    return is_trusted(files.certificate.read_bytes(), by, tls_name(component))


@pytest.mark.parametrize("component", Component)
def test_each_component_has_its_name_and_no_other(folder: CertificateFolder, component: Component) -> None:
    files = folder.files(component)
    read = files.read()
    assert read.authority is not None
    for name in Component:
        assert trusts(files, read.authority, name) is (name is component)


def test_further_names_are_in_it(folder: CertificateFolder) -> None:
    folder.write({Component.ROUTER: ["api.example.com", "192.0.2.7", "::1"]}, DAY, Step.KEEP)
    certificate = x509.load_pem_x509_certificate(folder.files(Component.ROUTER).certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "api.example.com" in names.get_values_for_type(x509.DNSName)
    assert {"192.0.2.7", "::1"} <= {str(ip) for ip in names.get_values_for_type(x509.IPAddress)}


@pytest.mark.parametrize("step", [Step.KEEP, Step.ANNOUNCE])
def test_a_renewed_certificate_has_the_names_of_the_one_before(folder: CertificateFolder, step: Step) -> None:
    folder.write({Component.ROUTER: ["api.example.com", "192.0.2.7"], Component.REDIS: ["valkey"]}, DAY, Step.KEEP)
    before = {component: folder.names(component) for component in Component}
    assert {"api.example.com", "192.0.2.7"} <= {*before[Component.ROUTER]}
    folder.write({Component.ROUTER: ["new.example.com"]}, DAY, step)
    assert {*folder.names(Component.ROUTER)} == {*before[Component.ROUTER], "new.example.com"}
    assert folder.names(Component.REDIS) == before[Component.REDIS]


@pytest.mark.parametrize("name", ["", "a b", "ü.example", "-x", "../../x", "a..b", "host:6379", "a.*.b"])
def test_what_is_no_name_is_refused(folder: CertificateFolder, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="neither a DNS name"):
        folder.write({Component.ROUTER: [name]}, DAY, Step.KEEP)


def test_keys_are_private(folder: CertificateFolder) -> None:
    keys = list(folder.path.rglob("*.key"))
    assert len(keys) == 1 + len(Component)
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_an_authority_is_changed_without_a_moment_of_distrust(folder: CertificateFolder) -> None:
    """Between two steps some processes have the files of before and some those of after."""
    files = folder.files(Component.ROUTER)
    states = [(files.certificate.read_bytes(), (files.authority or Path()).read_bytes())]
    for step in (Step.ANNOUNCE, Step.SWITCH, Step.RETIRE):
        folder.write({}, DAY, step)
        states.append((files.certificate.read_bytes(), (files.authority or Path()).read_bytes()))
    name = tls_name(Component.ROUTER)
    for before, after in pairwise(states):
        assert is_trusted(before[0], after[1], name)
        assert is_trusted(after[0], before[1], name)
    assert not is_trusted(states[0][0], states[-1][1], name), "the old authority is still trusted at the end"


@pytest.mark.parametrize("step", [Step.SWITCH, Step.RETIRE])
def test_steps_that_do_not_follow_are_refused(folder: CertificateFolder, step: Step) -> None:
    with pytest.raises(PreconditionError, match="--authority"):
        folder.write({}, DAY, step)


def test_a_renewal_is_taken_once_and_half_of_one_is_not(folder: CertificateFolder) -> None:
    said: list[str] = []
    files = folder.files(Component.WORKER)
    renewal = Renewal(files, said.append)
    assert renewal.take() is None
    folder.write({}, DAY, Step.KEEP)
    other_key = folder.files(Component.REDIS).key.read_bytes()
    key = files.key.read_bytes()
    files.key.write_bytes(other_key)
    assert renewal.take() is None
    assert "does not belong to" in said[-1]
    files.key.write_bytes(key)
    taken = renewal.take()
    assert taken is not None
    assert taken.certificate == files.certificate.read_bytes() != renewal.first.certificate
    assert renewal.take() is None


def test_files_that_cannot_be_used_are_named(folder: CertificateFolder, tmp_path: Path) -> None:
    good = folder.files(Component.ROUTER)
    junk = tmp_path / "junk"
    junk.write_text("no certificate")
    for files, words in (
        (TlsFiles(tmp_path / "away.crt", good.key, None), "there is no file .*away.crt"),
        (TlsFiles(good.certificate, folder.files(Component.WORKER).key, None), "does not belong to the certificate"),
        (TlsFiles(junk, good.key, None), "junk.* cannot be used"),
        (TlsFiles(good.certificate, good.key, junk), "junk cannot be used"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            files.read()
