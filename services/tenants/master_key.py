"""The master key: 32 bytes from which every other key of a cluster is derived, and under which tenant secrets lie.

While it is exchanged there are two: the first is used, the other is believed and opens what it had wrapped.

Knows nothing of where wrapped secrets are kept. A key never appears in a repr, a log line or an error; `key_id` names
it where two keys have to be told apart.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cache_store.domain import SECRET_BYTES, TenantId
from cache_store.encoding import encode
from cache_store.errors import CorruptDataError, InvalidRequestError
from services.private_files import is_private

MASTER_KEY_BYTES = 32
WRAP_VERSION = 1
_NONCE_BYTES = 12
_TEXT = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class MasterKey:
    """The key and what is derived from it. Made by `from_value`, `from_file` or `generate`."""

    raw: bytes = field(repr=False)
    other: MasterKey | None = field(default=None, repr=False)
    """The one before or after it, which has no other."""

    def __post_init__(self) -> None:
        if len(self.raw) != MASTER_KEY_BYTES:
            raise ValueError(f"a master key has {MASTER_KEY_BYTES} bytes, not {len(self.raw)}")

    @property
    def key_id(self) -> str:
        """16 hex digits that name this key and tell nothing else about it."""
        return _derive(self, b"sc-master-id").hex()[:16]

    def called(self, key_id: str) -> MasterKey | None:
        """This key or the other one, by its name."""
        return next((each for each in (self, self.other) if each is not None and each.key_id == key_id), None)

    @property
    def snapshot_mac_key(self) -> bytes:
        """Key of the MAC over a router's snapshot."""
        return _derive(self, b"sc-snapshot-mac")

    @property
    def export_mac_key(self) -> bytes:
        """Key of the MAC over an exported document."""
        return _derive(self, b"sc-export-mac")

    def wrap(self, tenant: TenantId, secret: bytes) -> bytes:
        """AES-256-GCM of a tenant's secret: nonce, ciphertext, tag. It opens for that tenant only."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + AESGCM(_derive(self, b"sc-wrap")).encrypt(nonce, secret, _bound_to(tenant))

    def unwrap(self, tenant: TenantId, wrapped: bytes) -> bytes:
        """Inverse of `wrap`. Raises CorruptDataError where tenant, key or bytes do not fit."""
        nonce, sealed = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
        if len(nonce) < _NONCE_BYTES:
            raise CorruptDataError(f"the wrapped secret of tenant {tenant} is cut short")
        try:
            secret = AESGCM(_derive(self, b"sc-wrap")).decrypt(nonce, sealed, _bound_to(tenant))
        except InvalidTag as error:
            raise CorruptDataError(
                f"the wrapped secret of tenant {tenant} does not open under master key {self.key_id}"
            ) from error
        if len(secret) != SECRET_BYTES:
            raise CorruptDataError(f"the secret of tenant {tenant} has {len(secret)} bytes, not {SECRET_BYTES}")
        return secret


def cluster_key(master: MasterKey) -> bytes:
    """Key of the MACs between routers and workers (`cache_store/cluster_mac.py`), with the other one behind it."""
    return b"".join(_derive(each, b"sc-cluster") for each in (master, master.other) if each is not None)


def rewrap(old: MasterKey, new: MasterKey, tenant: TenantId, wrapped: bytes) -> bytes:
    """The same secret, wrapped under another master key."""
    return new.wrap(tenant, old.unwrap(tenant, wrapped))


def generate() -> MasterKey:
    """A fresh key."""
    return MasterKey(secrets.token_bytes(MASTER_KEY_BYTES))


def from_value(text: str) -> MasterKey:
    """The key written as 64 hex digits, and the other one in the next line where there are two.

    Raises InvalidRequestError, without repeating the text.
    """
    words = text.split() or [""]
    for word in words:
        if not _TEXT.fullmatch(word):
            raise InvalidRequestError(
                "master_key",
                f"a master key is written as 64 hex digits, this text has {len(word)} characters or others than hex "
                "digits; `openssl rand -hex 32` makes one",
            )
    keys = [MasterKey(bytes.fromhex(word)) for word in words]
    if len(keys) > 2 or len({key.raw for key in keys}) < len(keys):
        raise InvalidRequestError(
            "master_key", "there are one or two master keys, not more and not twice the same; `stemcache master-key`"
        )
    return replace(keys[0], other=keys[1]) if keys[1:] else keys[0]


def to_text(master: MasterKey) -> str:
    """Inverse of `from_value`, a key a line."""
    return "".join(f"{each.raw.hex()}\n" for each in (master, master.other) if each is not None)


def from_file(path: Path) -> MasterKey:
    """The key in a file that only its owner may read or write. Raises InvalidRequestError."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            status = os.fstat(file.fileno())
            text = file.read(1024)
    except OSError as error:
        raise InvalidRequestError(
            "master_key_file", f"the master key file {path} cannot be read: {error.strerror}; name a readable file"
        ) from error
    if not is_private(status):
        raise InvalidRequestError(
            "master_key_file",
            f"the master key file {path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"run `chmod 600 {path}`",
        )
    return from_value(text)


def create_file(path: Path) -> MasterKey:
    """Writes a fresh key to a new file of mode 0600. Raises FileExistsError rather than replace a key."""
    master = generate()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(master.raw.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return master


def _derive(master: MasterKey, person: bytes) -> bytes:
    return hashlib.blake2b(key=master.raw, digest_size=32, person=person).digest()


def _bound_to(tenant: TenantId) -> bytes:
    return encode("tenant secret", WRAP_VERSION, tenant)
