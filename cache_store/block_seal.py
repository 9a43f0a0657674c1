"""One block's bytes, sealed for a place that others may read, write or tear. AES-256-GCM; knows no files.

A sealed block is a head and a body. The head is a prefix in clear (magic, format version, length of the header, number
of the seal) and the sealed header: domain tag, parent, digest, token ids, number and length of the block. The body is
the block's bytes, bound to the header. So nothing is used in another block's place, also not of the same domain, and
nothing in clear tells what is cached: a first block's parent is the domain root, and token ids are the prompt.

The key is random and never leaves this object, unless it was given one: whoever drops it has shredded all that was
sealed by it. No nonce is used twice: they are counted, so that a key that is given seals in one object only.
"""

from __future__ import annotations

import itertools
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cache_store.block_name import BlockName
from cache_store.domain import tag_of
from cache_store.encoding import encode
from cache_store.errors import CorruptDataError

SEAL_VERSION = 1
TAG_BYTES = 16
"""By which a sealed body is longer than the block."""

_MAGIC = b"SCkv"
_PREFIX = struct.Struct("<4sHIQ")  # magic, version, bytes of the sealed header, number of the seal
_NONCE = struct.Struct("<QI")
_HEADER, _BODY = 0, 1

Buffer = bytearray | memoryview


class BlockSeal:
    """Seals blocks of one domain. Safe on several threads: it has nothing but a key and a counter."""

    __slots__ = ("_cipher", "_numbers")

    def __init__(self, key: bytes | None = None) -> None:
        """`key`: 32 bytes; None: a random one."""
        self._cipher = AESGCM(AESGCM.generate_key(256) if key is None else key)
        self._numbers = itertools.count()

    def seal(self, name: BlockName, data: bytes | Buffer, body: Buffer) -> bytes:
        """Fills `body` (TAG_BYTES longer than `data`) and returns the head, `head_bytes(name, len(data))` long."""
        number = next(self._numbers)
        header = _header(name, len(data))
        prefix = _PREFIX.pack(_MAGIC, SEAL_VERSION, len(header) + TAG_BYTES, number)
        self._cipher.encrypt_into(_NONCE.pack(number, _BODY), data, prefix + header, body)
        return prefix + self._cipher.encrypt(_NONCE.pack(number, _HEADER), header, prefix)

    def open(self, name: BlockName, head: bytes | Buffer, body: bytes | Buffer, target: Buffer) -> None:
        """Fills `target` with the block's bytes.

        Raises CorruptDataError where head and body are not exactly what was sealed under `name`; `target` may then
        hold anything.
        """
        if len(head) < _PREFIX.size:
            raise CorruptDataError("a stored block is cut short")
        prefix = bytes(head[: _PREFIX.size])
        magic, version, _, number = _PREFIX.unpack(prefix)
        if (magic, version) != (_MAGIC, SEAL_VERSION):
            raise CorruptDataError(f"a stored block is not of format version {SEAL_VERSION}")
        try:
            header = self._cipher.decrypt(_NONCE.pack(number, _HEADER), head[_PREFIX.size :], prefix)
        except InvalidTag as error:
            raise CorruptDataError("the header of a stored block does not open") from error
        if header != _header(name, len(target)):
            raise CorruptDataError("a stored block is another one than was asked for")
        try:
            self._cipher.decrypt_into(_NONCE.pack(number, _BODY), body, prefix + header, target)
        except (InvalidTag, ValueError) as error:  # ValueError: of another length
            raise CorruptDataError("the body of a stored block does not open") from error


def head_bytes(name: BlockName, block_bytes: int) -> int:
    """Length of the head of a block of `block_bytes` bytes."""
    return _PREFIX.size + len(_header(name, block_bytes)) + TAG_BYTES


def _header(name: BlockName, block_bytes: int) -> bytes:
    return encode(bytes(tag_of(name.root)), name.parent, name.digest, name.tokens, name.number, block_bytes)
