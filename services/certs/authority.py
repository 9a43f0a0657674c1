"""Makes an authority and certificates signed by it, as PEM. Keeps nothing; knows no files."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_CLOCK_SLACK = timedelta(minutes=5)
"""Clocks of other machines may be behind."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: bytes
    key: bytes = field(repr=False)


def make_authority(now: datetime, lifetime: timedelta) -> Pair:
    """An authority that signs certificates of components and no other authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _name(f"Stemcache authority {serial & 0xFFFFFFFF:08x}")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        _builder(name, name, key.public_key(), serial, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def make_certificate(authority: Pair, names: Sequence[str], now: datetime, lifetime: timedelta) -> Pair:
    """For a component that answers and calls under `names`, DNS names and IP addresses, the first being its own."""
    signer_key = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer_key, ec.EllipticCurvePrivateKey), "made by make_authority"
    signer = x509.load_pem_x509_certificate(authority.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(_name(names[0]), signer.subject, key.public_key(), x509.random_serial_number(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False)
        .sign(signer_key, hashes.SHA256())
    )
    return _pair(certificate, key)


def names_in(certificate: x509.Certificate) -> tuple[str, ...]:
    """DNS names, then IP addresses."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (*found.get_values_for_type(x509.DNSName), *(str(ip) for ip in found.get_values_for_type(x509.IPAddress)))


def is_name(text: str) -> bool:
    """Whether a certificate can be made for `text`: an IP address, or a DNS name, which may begin with `*.`."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        labels = text.removeprefix("*.").removesuffix(".").split(".")
        return len(text) <= 253 and all(_LABEL.fullmatch(each) for each in labels)
    return True


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, serial: int, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(now - _CLOCK_SLACK)
        .not_valid_after(now + life)
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return Pair(certificate.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
