"""Certificates in a folder: one authority, and for each component a folder with tls.crt, tls.key and ca.crt.

The names are those of a Kubernetes TLS secret. Files are exchanged as a whole, so that who reads sees old or new ones.
An authority is changed in three steps, between which every process has to have read what lies there: its successor is
trusted, then signs, then is alone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from cryptography import x509

from cache_store.errors import InvalidRequestError, PreconditionError
from cache_store.tls_files import Component, TlsFiles, tls_name
from services.certs.authority import Pair, is_name, make_authority, make_certificate, names_in

AUTHORITY_LIFETIME = timedelta(days=3650)


class Step(StrEnum):
    """What to do about the authority."""

    KEEP = "keep"
    """Make one where there is none."""
    ANNOUNCE = "announce"
    """Trust a new one beside it."""
    SWITCH = "switch"
    """Sign with the new one, trust both."""
    RETIRE = "retire"
    """Trust the new one only."""


@dataclass(frozen=True, slots=True)
class CertificateFolder:
    """Where they lie."""

    path: Path

    def files(self, component: Component) -> TlsFiles:
        """What a process of that component is told."""
        folder = self.path / component
        return TlsFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")

    def names(self, component: Component) -> tuple[str, ...]:
        """In its certificate; none without one. Raises PreconditionError for a file that is no certificate."""
        path = self.files(component).certificate
        if not path.exists():
            return ()
        try:
            return names_in(x509.load_pem_x509_certificate(path.read_bytes()))
        except ValueError as error:
            raise PreconditionError(f"{path} is no certificate, so its names are unknown; remove it") from error

    def write(self, names: Mapping[Component, Sequence[str]], lifetime: timedelta, step: Step) -> None:
        """Makes certificates of all components anew, for the names that they had; `names`: further ones.

        Raises InvalidRequestError for what is no name, PreconditionError for a step that does not follow.
        """
        for component, further in names.items():
            for name in further:
                if not is_name(name):
                    raise InvalidRequestError("name", f"{name!r} is neither a DNS name nor an IP address ({component})")
        had = {component: self.names(component) for component in Component}
        now = datetime.now(UTC)
        signer, trusted = self._authorities(step, now)
        for component in Component:
            own = [tls_name(component), "localhost", "127.0.0.1", *had[component], *names.get(component, ())]
            pair = make_certificate(signer, list(dict.fromkeys(own)), now, lifetime)
            folder = self.path / component
            folder.mkdir(mode=0o700, exist_ok=True)
            _replace(folder / "ca.crt", trusted, 0o644)
            _replace(folder / "tls.key", pair.key, 0o600)
            _replace(folder / "tls.crt", pair.certificate, 0o644)

    def _authorities(self, step: Step, now: datetime) -> tuple[Pair, bytes]:
        """Who signs, and who is trusted."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        current, following = self._pair("ca"), self._pair("ca-next")
        if step is Step.KEEP:
            current = current or self._made("ca", now)
        elif current is None:
            raise PreconditionError(f"{self.path} has no authority that could be changed; make one without --authority")
        elif step is Step.ANNOUNCE:
            if self._pair("ca-old") is not None:
                raise PreconditionError("the authority before is still trusted; `--authority retire` ends that")
            following = following or self._made("ca-next", now)
        elif step is Step.SWITCH:
            if following is None:
                raise PreconditionError("there is no successor that is trusted; `--authority announce` makes one")
            self._move("ca", "ca-old")
            self._move("ca-next", "ca")
            current, following = following, None
        elif self._pair("ca-old") is None:
            raise PreconditionError("no authority waits to be retired; `--authority switch` comes before")
        else:
            for ending in ("crt", "key"):
                (self.path / f"ca-old.{ending}").unlink()
        old = self._pair("ca-old")
        trusted = b"".join(pair.certificate for pair in (current, following, old) if pair is not None)
        return current, trusted

    def _pair(self, stem: str) -> Pair | None:
        certificate, key = self.path / f"{stem}.crt", self.path / f"{stem}.key"
        if not certificate.exists() or not key.exists():
            return None
        return Pair(certificate.read_bytes(), key.read_bytes())

    def _made(self, stem: str, now: datetime) -> Pair:
        pair = make_authority(now, AUTHORITY_LIFETIME)
        _replace(self.path / f"{stem}.key", pair.key, 0o600)
        _replace(self.path / f"{stem}.crt", pair.certificate, 0o644)
        return pair

    def _move(self, stem: str, to: str) -> None:
        for ending in ("crt", "key"):
            (self.path / f"{stem}.{ending}").rename(self.path / f"{to}.{ending}")


def _replace(path: Path, content: bytes, mode: int) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        if os.geteuid() == 0:  # whom the folder was given to goes on to read what lies there
            owner = path.parent.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        file.write(content)
    Path(name).replace(path)
